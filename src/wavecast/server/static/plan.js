"use strict";
// The page of plans: it sends the jobs, and shows the plan, or where in the jobs something is wrong.
const wavecastPlan = {
  ...wavecastApi,
  asking: null, clock: 0, id: null,

  start() {
    byId("ask").addEventListener("submit", event => { event.preventDefault(); this.ask(); });
    byId("cancel").addEventListener("click", () => this.asking?.abort());
    byId("jobs").addEventListener("input", () => this.mark(null));
    byId("file").addEventListener("change", event => this.take(event.target.files[0]));
    byId("share").addEventListener("click", () => this.share());
    for (const name of ["dragover", "drop"]) addEventListener(name, event => event.preventDefault());
    addEventListener("drop", event => this.take(event.dataTransfer.files[0]));
    addEventListener("popstate", () => this.recall());
    this.recall();
  },
  // Show the plan that the address names.
  async recall() {
    const name = /^\/plan\/([0-9a-f]{32})$/.exec(location.pathname)?.[1];
    if (!name || name === this.id) return;
    await this.await("Loading", signal => this.get(`/api/plans/${name}`, signal), plan => {
      byId("jobs").value = plan.question.jobs;
      byId("by").value = plan.question.by;
      byId("robust").checked = plan.question.robust;
      this.show(plan);
    });
  },
  async take(file) {
    if (!file) return;
    byId("file-name").textContent = file.name;
    byId("file").value = "";
    if (file.size > 24000) { this.mark("This file is too large for the page; use wavecast plan"); return; }
    byId("jobs").value = await file.text();
    this.mark(null);
  },
  async ask() {
    this.mark(null);
    if (!byId("jobs").value.trim()) { this.mark("There are no jobs; write each as [[jobs]]"); return; }
    const question = { jobs: byId("jobs").value.replaceAll("\r", ""), by: byId("by").value, robust: byId("robust").checked };
    await this.await("Planning", signal => this.post("/api/plans", JSON.stringify(question), "application/json", signal), plan => {
      this.show(plan);
      if (location.pathname !== `/plan/${plan.id}`) history.pushState(null, "", `/plan/${plan.id}`);
      if (matchMedia("(max-width: 60rem)").matches) byId("results").scrollIntoView();
    });
  },
  async await(told, answering, show) {
    this.asking?.abort();
    const asking = this.asking = new AbortController(), since = Date.now();
    byId("problem").hidden = true;
    this.busy(true, told);
    this.clock = setInterval(() => {
      byId("waiting").hidden = false;
      byId("waiting").textContent = `${told}, ${Math.round((Date.now() - since) / 1000)} s`;
    }, 1000);
    try {
      show(await answering(asking.signal));
      this.busy(false, byId("verdict").textContent);
    } catch (error) {
      if (asking !== this.asking) return;
      this.busy(false, asking.signal.aborted ? "Cancelled" : "");
      if (!asking.signal.aborted) this.fail(error);
    }
  },
  busy(is, told) {
    clearInterval(this.clock);
    byId("waiting").hidden = true;
    byId("cancel").hidden = !is;
    byId("plan").disabled = is;
    byId("results").classList.toggle("busy", is);
    byId("results").setAttribute("aria-busy", String(is));
    byId("status").textContent = told;
  },
  fail(error) {
    byId("answer").classList.add("old");
    const told = error instanceof TypeError ? "The server cannot be reached. Is it still running?" : error.message;
    if (this.line(told) !== null) { this.mark(told); return; }
    byId("problem").querySelector("strong").textContent = "There is no plan";
    byId("problem").querySelector("p").textContent = told.charAt(0).toUpperCase() + told.slice(1);
    byId("problem").hidden = false;
  },
  // Say what is wrong under the text, and select the line that it is about.
  mark(told) {
    const text = byId("jobs"), wrong = byId("jobs-wrong");
    wrong.hidden = told === null;
    wrong.textContent = told ?? "";
    text.setAttribute("aria-invalid", String(told !== null));
    const line = told === null ? null : this.line(told);
    if (line === null) return;
    wrong.textContent = `Line ${line + 1}: ${told}`;
    const lines = text.value.split("\n"), begin = lines.slice(0, line).join("\n").length + (line ? 1 : 0);
    text.focus();
    text.setSelectionRange(begin, begin + lines[line].length);
    text.scrollTop = Math.max(0, line - 4) * text.scrollHeight / lines.length;
  },
  // The line that a message names: by its number, by a key such as jobs[2].epochs, or by a job's name.
  line(told) {
    const lines = byId("jobs").value.split("\n");
    const numbered = /at line (\d+)/.exec(told), keyed = /(jobs|cluster\.pools)\[(\d+)\](?:\.([\w-]+))?/.exec(told), named = /\bjob ([\w.-]+)/.exec(told);
    if (numbered) return Math.min(Number(numbered[1]), lines.length) - 1;
    const heads = list => lines.flatMap((line, at) => line.trim().startsWith(`[[${list}]]`) ? [at] : []);
    if (keyed) {
      const first = heads(keyed[1])[Number(keyed[2]) - 1];
      return first === undefined ? null : this.within(lines, first, keyed[3]);
    }
    const at = named ? lines.findIndex(line => /^\s*name\s*=/.test(line) && line.includes(`"${named[1]}"`)) : -1;
    return at < 0 ? null : at;
  },
  within(lines, first, key) {
    for (let at = first + 1; key && at < lines.length && !lines[at].trim().startsWith("[["); at += 1) {
      if (lines[at].split("=")[0].trim() === key) return at;
    }
    return first;
  },
  show(plan) {
    this.id = plan.id;
    byId("problem").hidden = byId("empty").hidden = true;
    byId("answer").hidden = false;
    byId("answer").classList.remove("old");
    byId("target").textContent = plan.title;
    document.title = `${plan.title} - Wavecast`;
    this.put("verdict", plan.verdict);
    byId("verdict").classList.toggle("bad", !plan.meets_deadlines);
    this.put("details", plan.sections.join(""));
    for (const table of byId("details").querySelectorAll("table.sorts")) wavecastSorts(table);
    byId("download").href = `/api/plans/${plan.id}/report`;
    byId("share-told").textContent = "";
  },
  async share() {
    const link = new URL(`/plan/${this.id}`, location.href).href;
    try {
      await navigator.clipboard.writeText(link);
      byId("share-told").textContent = "The link is copied";
    } catch {
      byId("share-told").textContent = link;  // where pages may not write to the clipboard
    }
  },
};
addEventListener("DOMContentLoaded", () => {
  document.body.classList.add("live");
  wavecastPlan.start();
});
