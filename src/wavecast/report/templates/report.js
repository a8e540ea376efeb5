
"use strict";
// What makes a page of Wavecast interactive. Everything that it shows is also in tables.
// Texts from the data are only ever set as textContent, so that no name can become markup.
const wavecastParts = [];

// `signal` ends it: a page that shows one result after the other aborts the one before.
function wavecastReport(root, data, signal) {
  const page = root.closest ? root.closest(".wavecast") || root : document.body;
  page.classList.add("live");
  const views = [];
  for (const make of wavecastParts) {
    for (const subject of Object.keys(data.subjects)) views.push(...make(root, data, subject));
  }
  const choice = root.querySelector("#subject");
  function choose(wanted) {
    for (const part of root.querySelectorAll(".subject")) part.hidden = part.dataset.subject !== wanted;
    for (const view of views) if (view.subject === wanted) view.draw();
  }
  const first = Object.keys(data.subjects)[0];
  if (first !== undefined) choose(choice ? choice.value : first);
  if (choice) choice.addEventListener("change", () => choose(choice.value));
  for (const table of root.querySelectorAll("table.sorts")) wavecastSorts(table);
  let waiting = 0;
  const redraw = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => { for (const view of views) view.draw(); });
  };
  addEventListener("resize", redraw, { signal });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal });
  addEventListener("wavecast-theme", redraw, { signal });
  addEventListener("beforeprint", () => {
    for (const part of root.querySelectorAll("details")) part.open = true;
  }, { signal });
  return { choose, redraw };
}

// A click on a heading sorts by its column; a second click reverses the order.
function wavecastSorts(table) {
  const scale = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, us: 1e-6, ms: 1e-3, min: 60, h: 3600, d: 86400, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50 };
  function value(cell) {
    const parts = cell.textContent.replaceAll(/[,$]/g, "").replace("> ", "").trim().split(" ");
    const number = parseFloat(parts[0]);
    return Number.isNaN(number) ? cell.textContent : number * (scale[parts[1]] ?? 1);
  }
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [value(a.cells[column]), value(b.cells[column])];
      const mixed = typeof x !== typeof y ? (typeof x === "string" ? 1 : -1) : null;
      return mixed ?? (x > y ? 1 : x < y ? -1 : 0) * (up ? 1 : -1);
    });
    table.tBodies[0].append(...rows);
  }));
}

function wavecastTime(seconds) {
  const [size, unit] = seconds >= 0.9995 ? [1, "s"] : seconds >= 0.9995e-3 ? [1e-3, "ms"] : [1e-6, "us"];
  const number = seconds / size;
  return `${number >= 99.95 ? number.toFixed(0) : number >= 9.995 ? number.toFixed(1) : number.toFixed(2)} ${unit}`;
}

// The colors of the style sheet, as the browser computes them for the present theme.
function wavecastColors(root) {
  const probe = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  probe.setAttribute("class", "unseen");
  const colors = [];
  for (let index = 0; index < 12; index += 1) {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    rect.setAttribute("class", `c${index}`);
    probe.append(rect);
    colors.push(rect);
  }
  root.append(probe);
  const found = colors.map(rect => getComputedStyle(rect).fill);
  probe.remove();
  return found;
}

const wavecastTip = {
  show(text, x, y, page) {
    this.hide();
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.textContent = text;
    page.append(tip);
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
    this.element = tip;
  },
  hide() { if (this.element) this.element.remove(); this.element = null; },
};

function wavecastTheme(button) {
  const page = document.documentElement;
  const kept = () => { try { return localStorage.getItem("wavecast-theme"); } catch { return null; } };
  const isDark = () => page.dataset.theme
    ? page.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  function show() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
    button.removeAttribute("aria-pressed");
  }
  const before = kept();
  if (before === "dark" || before === "light") page.dataset.theme = before;
  show();
  button.addEventListener("click", () => {
    page.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("wavecast-theme", page.dataset.theme); } catch { /* not kept */ }
    show();
    dispatchEvent(new Event("wavecast-theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

addEventListener("DOMContentLoaded", () => {
  const switcher = document.querySelector("button.theme");
  if (switcher) wavecastTheme(switcher);
  const holder = document.getElementById("wavecast-data");
  if (holder) wavecastReport(document.querySelector("main"), JSON.parse(holder.textContent));
});
