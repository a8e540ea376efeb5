// The tree of modules: width is GPU time. Arrow keys walk, Enter goes in, Escape goes out.
wavecastParts.push((root, data, subject) => {
  const place = root.querySelector(`.icicle[data-subject="${CSS.escape(subject)}"]`);
  const tree = data.subjects[subject].tree;
  if (!place || !tree) return [];
  const [NAME, TIME, CALLS, COLOR, CHILDREN] = [0, 1, 2, 3, 4];
  const nodes = place.querySelector(".nodes"), path = place.querySelector(".path");
  const whole = tree[TIME] || 1, rowHeight = 31, deepest = 6;
  let trail = [tree];
  const name = node => data.names[node[NAME]];
  const share = node => `${(100 * node[TIME] / whole).toFixed(1)}%`;
  const calls = node => `${node[CALLS].toLocaleString("en")} call${node[CALLS] === 1 ? "" : "s"}`;
  const told = node => `${name(node)}: ${wavecastTime(node[TIME] / 1e9)}, ${share(node)} of GPU time, ${calls(node)}`;

  function drawPath() {
    path.replaceChildren();
    trail.forEach((node, index) => {
      if (index) path.append(document.createTextNode("\u203a"));
      if (index === trail.length - 1) {
        const now = document.createElement("span");
        now.className = "now";
        now.textContent = told(node);
        path.append(now);
        return;
      }
      const back = document.createElement("button");
      back.type = "button";
      back.textContent = name(node);
      back.addEventListener("click", () => { trail = trail.slice(0, index + 1); draw(true); });
      path.append(back);
    });
  }
  function draw(focus) {
    const width = nodes.clientWidth;
    if (!width) return;
    drawPath();
    const made = [];
    let depthSeen = 0;
    function put(node, parents, x, w, depth) {
      if (w < 2 || depth >= deepest) return;
      depthSeen = Math.max(depthSeen, depth);
      const box = document.createElement("div");
      const isLeaf = !node[CHILDREN].length;
      box.className = `node${isLeaf ? " leaf" : ""}${w < 26 ? " thin" : ""}`;
      box.style.left = `${x}px`;
      box.style.top = `${depth * rowHeight}px`;
      box.style.width = `${Math.max(1, w - 2)}px`;
      box.style.setProperty("--own", `var(--c${node[COLOR]})`);
      if (w >= 26) box.textContent = `${name(node)}  ${w > 150 ? share(node) : ""}`;
      box.setAttribute("role", "treeitem");
      box.setAttribute("aria-level", String(parents.length + 1));
      if (!isLeaf) box.setAttribute("aria-expanded", "true");
      box.setAttribute("aria-label", told(node));
      box.tabIndex = -1;
      const entry = { box, node, parents, depth, children: [], up: null };
      made.push(entry);
      box.addEventListener("click", () => enter(entry));
      box.addEventListener("keydown", event => walk(event, entry));
      box.addEventListener("pointermove", event => wavecastTip.show(told(node), event.clientX, event.clientY, root));
      box.addEventListener("pointerleave", () => wavecastTip.hide());
      let at = x;
      for (const child of node[CHILDREN]) {
        const room = w * child[TIME] / (node[TIME] || 1);
        const before = made.length;
        put(child, [...parents, node], at, room, depth + 1);
        if (made.length > before) { made[before].up = entry; entry.children.push(made[before]); }
        at += room;
      }
    }
    put(trail[trail.length - 1], trail.slice(0, -1), 0, width, 0);
    nodes.style.height = `${(depthSeen + 1) * rowHeight}px`;
    nodes.replaceChildren(...made.map(entry => entry.box));
    if (made.length) { made[0].box.tabIndex = 0; if (focus) made[0].box.focus(); }
  }
  function enter(entry) {
    wavecastTip.hide();
    if (entry.up === null) { leave(); return; }
    if (!entry.node[CHILDREN].length) return;
    trail = [...entry.parents, entry.node];
    draw(true);
  }
  function leave() {
    if (trail.length > 1) { trail = trail.slice(0, -1); draw(true); }
  }
  function walk(event, entry) {
    const beside = entry.up ? entry.up.children : [entry];
    const at = beside.indexOf(entry);
    const goes = {
      ArrowRight: () => beside[at + 1], ArrowLeft: () => beside[at - 1],
      ArrowDown: () => entry.children[0], ArrowUp: () => entry.up, Home: () => beside[0], End: () => beside[beside.length - 1],
    };
    if (event.key in goes) {
      const next = goes[event.key]();
      if (next) { entry.box.tabIndex = -1; next.box.tabIndex = 0; next.box.focus(); }
    } else if (event.key === "Enter" || event.key === " ") enter(entry);
    else if (event.key === "Escape" || event.key === "Backspace") leave();
    else return;
    event.preventDefault();
  }
  return [{ subject, draw: () => draw(false) }];
});
