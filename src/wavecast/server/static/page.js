"use strict";
// The page: it asks when a control changes, and shows the answer. A newer question ends an older one.
const FIRST = {
  model: "resnet50", precision: "bf16", sizes: {},
  gpus: ["h100-sxm-80gb", "a100-sxm-80gb", "l4", "rtx-4090"],
};
const wavecastPage = {
  ...wavecastApi,
  asking: null, detailing: null, drawn: null, timer: 0, clock: 0, result: null, gpu: null, tries: 0,

  async start() {
    byId("problem").querySelector("button").addEventListener("click", () => {
      if (wavecastControls.catalogue) this.ask(); else location.reload();
    });
    byId("share").addEventListener("click", () => this.share());
    byId("spread-out").addEventListener("click", () => {
      wavecastControls.spreadOut(8);
      this.ask();
    });
    byId("cancel").addEventListener("click", () => this.cancel());
    byId("choose-gpus").addEventListener("submit", event => { event.preventDefault(); this.showOffers(); });
    byId("advise").addEventListener("click", () => this.showAdvice());
    addEventListener("popstate", () => this.recallPlace());
    byId("file").addEventListener("change", event => this.upload(event.target.files[0]));
    this.listenForDrops();
    this.busy(true, "Loading");
    try {
      wavecastControls.start(await this.get("/api/catalogue"), () => this.askSoon());
    } catch (error) {
      this.fail(error, "The server does not answer");
      return;
    }
    this.recallPlace();
  },
  // Show what the address of the page names: a result, or the first question.
  async recallPlace() {
    clearTimeout(this.timer);
    this.asking?.abort();
    const name = /^\/r\/([0-9a-f]{32})$/.exec(location.pathname)?.[1];
    if (!name) { this.askAddress(); return; }
    const asking = this.asking = new AbortController();
    this.busy(true, "Loading");
    try {
      const result = await this.get(`/api/results/${name}`, asking.signal);
      if (result.question.trace) await this.recall(result.question);
      wavecastControls.set(result.question);
      this.show(result);
      this.busy(false, "");
    } catch (error) {
      if (asking.signal.aborted) return;
      wavecastControls.set(FIRST);  // what "try again" asks for
      this.fail(error, "This result is not here");
    }
  },
  // Ask the first question, with what the address asks for in it, as in /?model=gpt2&batch=8.
  askAddress() {
    const { question, unknown } = wavecastControls.readAddress(location.search, FIRST);
    wavecastControls.set(question);
    if (!unknown.length) { this.ask(false); return; }
    this.fail(new Error(unknown.join(". ")), "The address asks for what is not known here");
    byId("problem").querySelector("button").hidden = true;  // the controls on the left are what to try
  },
  async recall(question) {
    // The file itself is not asked for; what the controls need to know of it is in the question.
    wavecastControls.setUpload(
      { trace: question.trace, label: question.label ?? "An uploaded file", measured: question.precision !== null, asksOrigin: question.origin !== null, takesBatch: question.batch !== null },
      "Uploaded before",
    );
  },

  askSoon() {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.tries = 0;
    this.timer = setTimeout(() => this.ask(), 250);
  },
  // A new answer is a new place in the browser's history, unless the first question is asked by itself.
  async ask(isPlace = true) {
    clearTimeout(this.timer);
    this.asking?.abort();
    const question = wavecastControls.question();
    const missing = question === null && wavecastControls.source() === "upload" && !wavecastControls.upload;
    byId("empty").hidden = !missing;
    if (missing) { byId("answer").hidden = byId("skeleton").hidden = true; this.hideProblem(); }
    if (question === null) { this.age(true); this.busy(false, missing ? "Choose a file" : "A control has a value that cannot be used"); return; }
    const asking = this.asking = new AbortController();
    this.busy(true, "Predicting");
    try {
      const result = await this.post("/api/predictions", JSON.stringify(question), "application/json", asking.signal);
      this.show(result);
      const place = `/r/${result.id}`;
      if (isPlace && location.pathname !== place) history.pushState(null, "", place);
      this.busy(false, `Predicted ${result.target}: ${byId("verdict").textContent}`);
    } catch (error) {
      if (asking.signal.aborted) return;
      if (error.retry && this.tries < 5) { this.tries += 1; this.timer = setTimeout(() => this.ask(isPlace), error.retry * 1000); return; }
      this.fail(error, "This could not be predicted");
    }
  },
  async upload(file) {
    if (!file) return;
    const about = byId("file-about"), most = wavecastControls.catalogue?.most_upload_bytes;
    document.querySelector('input[name="source"][value="upload"]').checked = true;
    wavecastControls.setUpload(null, "Reading the file ...");
    byId("file-name").textContent = file.name;
    this.asking?.abort();
    const asking = this.asking = new AbortController();
    this.busy(true, "Uploading");
    try {
      if (file.size > most) throw new Error(`it has ${Math.ceil(file.size / 2 ** 20).toLocaleString("en")} MiB, and this server takes files of up to ${most / 2 ** 20} MiB; compress it with gzip, or profile fewer steps`);
      const kind = ["application/json", "application/gzip"].includes(file.type) ? file.type : "application/octet-stream";
      const read = await this.post("/api/traces", file, kind, asking.signal);
      const measured = Boolean(read.measured_on);
      const label = file.name.slice(0, 80);
      wavecastControls.setUpload({ trace: read.trace, label, measured, asksOrigin: measured && read.origin === null, takesBatch: measured && read.samples === null },
        `${read.calls.toLocaleString("en")} calls${measured ? `, measured on ${read.measured_on}` : ""}${read.samples ? `, ${read.samples.toLocaleString("en")} ${read.unit}` : ""}`);
      byId("file").value = "";
      this.ask();
    } catch (error) {
      if (asking.signal.aborted) return;
      byId("file").value = "";
      wavecastControls.setUpload(null, "Choose another file");
      about.focus?.();
      this.fail(error, "This file cannot be read");
    }
  },
  listenForDrops() {
    const drop = byId("drop");
    for (const name of ["dragover", "drop"]) addEventListener(name, event => event.preventDefault());
    addEventListener("dragover", () => drop.classList.add("over"));
    for (const name of ["dragleave", "drop"]) addEventListener(name, () => drop.classList.remove("over"));
    addEventListener("drop", event => this.upload(event.dataTransfer.files[0]));
  },

  busy(is, told) {
    byId("results").classList.toggle("busy", is);
    byId("results").setAttribute("aria-busy", String(is));
    byId("status").textContent = told;
    if (is && byId("answer").hidden && byId("empty").hidden) byId("skeleton").hidden = false;
    if (!is) byId("skeleton").hidden = true;
    this.watch(is, told);
  },
  // Tell how long an answer takes once that is worth telling; the old one stays in view.
  watch(is, told) {
    clearInterval(this.clock);
    byId("waiting").hidden = true;
    if (!is) return;
    const since = Date.now();
    let before = "";
    this.clock = setInterval(async () => {
      const passed = Math.round((Date.now() - since) / 1000);
      if (passed < 2) return;
      byId("waiting").hidden = false;
      byId("waited").textContent = `${told}, ${passed} s${before}`;
      if (passed % 3 === 0) {
        const place = (await this.get("/api/queue").catch(() => ({ yours: [] }))).yours[0] ?? 0;
        before = place ? `; ${place} before this one` : "";
      }
    }, 1000);
  },
  cancel() {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.busy(false, "Cancelled");
    if (this.result) { wavecastControls.set(this.result.question); this.age(false); return; }
    this.fail(new Error("Change a control to ask for something else"), "Cancelled");
  },
  fail(error, title) {
    this.busy(false, "");
    const problem = byId("problem");
    problem.querySelector("strong").textContent = title;
    const told = error instanceof TypeError ? "The server cannot be reached. Is it still running?" : error.message;
    problem.querySelector("p").textContent = told.charAt(0).toUpperCase() + told.slice(1);
    problem.querySelector("button").hidden = wavecastControls.catalogue !== null && wavecastControls.question() === null;
    problem.hidden = false;
    byId("answer").hidden = this.result === null;  // the last answer stays, with what it was about
    this.age(true);
  },
  hideProblem() { byId("problem").hidden = true; },
  // Whether the answer in view is an older one than the controls ask for.
  age(is) { byId("answer").classList.toggle("old", is); },

  show(result) {
    this.result = result;
    this.hideProblem();
    this.age(false);
    byId("empty").hidden = byId("skeleton").hidden = true;
    byId("answer").hidden = false;
    byId("target").textContent = result.target;
    document.title = `${result.target} - Wavecast`;
    for (const part of ["verdict", "tiles", "comparison", "training"]) this.put(part, result.parts[part]);
    byId("training-section").hidden = !result.parts.training;
    byId("comparison-lead").textContent = ["The dot is the predicted time, the line its range.", ...result.parts.prices.map(line => `${line}.`)].join(" ");
    byId("peek").textContent = `${result.parts.best}: ${byId("tiles").querySelector("dd")?.textContent ?? ""} a step`;
    byId("peek").hidden = false;
    for (const table of byId("answer").querySelectorAll("#comparison table.sorts, #training table.sorts")) wavecastSorts(table);
    byId("download").href = `/api/results/${result.id}/report`;
    byId("share-told").textContent = "";
    byId("spread-out").hidden = Boolean(result.question.parallel) || result.rows.some(row => row.fits !== false);
    byId("offers").replaceChildren();
    byId("offers-section").hidden = !result.question.training;
    this.showCautions(result);
    this.showChoice(result);
  },
  // Longer questions about the answer: what to rent, and what to change.
  async showOffers() {
    const limits = wavecastControls.limits();
    if (limits) await this.fill("offers", this.post(`/api/results/${this.result.id}/choices`, JSON.stringify(limits), "application/json"));
  },
  async showAdvice() { await this.fill("advice", this.get(`/api/results/${this.result.id}/gpus/${this.gpu}/advice`)); },
  async fill(id, answering) {
    const place = byId(id), since = Date.now(), shown = this.result;
    const told = made("p", "Working", { class: "waiting", role: "status" });
    place.replaceChildren(told);
    const clock = setInterval(() => { told.textContent = `Working, ${Math.round((Date.now() - since) / 1000)} s`; }, 1000);
    try {
      const answer = await answering;
      if (shown !== this.result) return;
      this.put(id, `<p class="verdict">${answer.verdict}</p>${answer.sections.join("")}`);
      for (const table of place.querySelectorAll("table.sorts")) wavecastSorts(table);
    } catch (error) {
      if (shown === this.result) place.replaceChildren(made("p", error.message, { class: "notice bad", role: "alert" }));
    } finally { clearInterval(clock); }
  },
  showCautions(result) {
    const told = [...Object.entries(result.failed).map(([gpu, reason]) => `${gpu}: ${reason}`), ...result.doubts];
    const box = made("div", null, { class: "notice" }), list = made("ul", null);
    list.append(...told.map(text => made("li", text)));
    box.append(list);
    byId("cautions").replaceChildren(...(told.length ? [box] : []));
  },
  showChoice(result) {
    const gpus = result.rows.map(row => row.gpu);
    this.gpu = gpus.includes(this.gpu) ? this.gpu : result.parts.best;
    const choices = gpus.map(gpu => {
      const label = made("label", null), input = made("input", null, { type: "radio", name: "shown", value: gpu });
      input.checked = gpu === this.gpu;
      input.addEventListener("change", () => { this.gpu = gpu; this.showDetails(); });
      label.append(input, made("span", gpu));
      return label;
    });
    byId("choose").replaceChildren("Details for", ...choices);
    this.showDetails();
  },
  async showDetails() {
    this.detailing?.abort();
    byId("advice").replaceChildren();
    byId("advise").textContent = `What would make it better on ${this.gpu}?`;
    const detailing = this.detailing = new AbortController();
    const place = byId("details"), name = this.result.id, gpu = this.gpu;
    if (!place.children.length) place.replaceChildren(made("p", "Loading where time and memory go", { class: "waiting" }));
    place.setAttribute("aria-busy", "true");
    try {
      const details = await this.get(`/api/results/${name}/gpus/${gpu}`, detailing.signal);
      this.drawn?.abort();
      this.drawn = new AbortController();
      this.put("details", details.sections.join(""));
      wavecastReport(place, details.data, this.drawn.signal);
    } catch (error) {
      if (detailing.signal.aborted) return;
      place.replaceChildren(made("p", error.message, { class: "notice bad", role: "alert" }));
    }
    place.setAttribute("aria-busy", "false");
  },
  async share() {
    const told = byId("share-told"), link = new URL(`/r/${this.result.id}`, location.href).href;
    told.textContent = "Saving ...";
    try {
      await this.post(`/api/results/${this.result.id}/save`, "", "application/json");
      try {
        await navigator.clipboard.writeText(link);
        told.textContent = "The link is copied";
      } catch {
        told.textContent = link;  // where pages may not write to the clipboard
      }
    } catch (error) { told.textContent = error.message; }
  },
};
addEventListener("DOMContentLoaded", () => {
  document.body.classList.add("live");
  wavecastPage.start();
});
