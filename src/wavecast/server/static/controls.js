"use strict";
// The controls: what is chosen, as the question that the API takes, and the other way round.
const wavecastControls = {
  catalogue: null,
  gpus: [],
  upload: null,  // { trace, label, measured }
  changed: () => {},

  start(catalogue, changed) {
    this.catalogue = catalogue;
    this.changed = changed;
    this.fillModels();
    this.fillPrecisions();
    for (const gpu of catalogue.gpus) byId("gpu-list").append(made("option", gpu.name, { value: gpu.id }));
    this.listen();
    if (!catalogue.models.length) {  // the server has no torch: it reads files, and traces no models
      for (const input of document.querySelectorAll('input[name="source"]')) {
        input.checked = input.value === "upload";
        input.disabled = input.value === "model";
      }
    }
  },
  fillModels() {
    const groups = new Map();
    for (const model of this.catalogue.models) {
      if (!groups.has(model.domain)) groups.set(model.domain, made("optgroup", null, { label: model.domain }));
      groups.get(model.domain).append(made("option", model.title, { value: model.name }));
    }
    byId("model").replaceChildren(...groups.values());
  },
  fillPrecisions() {
    const measured = this.source() === "upload";
    const choices = [["", "as it is"], ...this.catalogue.precisions.map(name => [name, name])];
    const before = this.precision();
    byId("precision").replaceChildren(...choices.filter(([value]) => measured === (value === "") || (measured && this.upload?.measured))
      .map(([value, text]) => {
        const label = made("label", null), input = made("input", null, { type: "radio", name: "precision", value });
        label.append(input, made("span", text));
        return label;
      }));
    this.setPrecision(before);
  },
  precision() { return document.querySelector('input[name="precision"]:checked')?.value ?? null; },
  setPrecision(value) {
    const inputs = [...document.querySelectorAll('input[name="precision"]')];
    const wanted = inputs.find(input => input.value === (value ?? "")) ?? inputs.find(input => input.value === "bf16") ?? inputs[0];
    if (wanted) wanted.checked = true;
  },
  source() { return document.querySelector('input[name="source"]:checked').value; },
  model() { return this.catalogue.models.find(model => model.name === byId("model").value); },

  listen() {
    byId("controls").addEventListener("submit", event => event.preventDefault());
    byId("controls").addEventListener("input", event => {
      if (event.target.id === "gpu" || event.target.id === "file") return;
      if (event.target.name === "source") this.showSource();
      if (event.target.id === "model") this.showModel();
      this.showSpread();
      this.showAmounts();
      this.changed();
    });
    const entry = byId("gpu");
    entry.addEventListener("change", () => this.addGpu());
    entry.addEventListener("input", event => {
      // A choice from the list comes as one change of the whole text.
      if (event.inputType === "insertReplacementText" || !event.inputType) this.addGpu();
    });
    entry.addEventListener("keydown", event => { if (event.key === "Enter") { event.preventDefault(); this.addGpu(); } });
  },
  showSource() {
    for (const part of document.querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== this.source();
    byId("batch").disabled = this.source() === "upload" && !this.upload?.takesBatch;
    byId("compile-box").hidden = this.source() === "upload" || !this.catalogue.compiles;
    byId("origin-box").hidden = !this.upload?.asksOrigin;
    this.fillPrecisions();
    this.showBatch();
    this.showTuning();
  },
  showTuning() {
    const named = this.source() === "model" && byId("model").value.startsWith("hf:");
    byId("tuning").hidden = !named;
    byId("adapters-box").hidden = !named || !this.model().adapts;
    if (byId("adapters-box").hidden) byId("adapters").value = "";
  },
  showModel() {
    this.showTuning();
    byId("batch").value = "";
    this.showSizes({});
    this.showBatch();
  },
  showBatch() {
    byId("batch").placeholder = this.source() === "model" ? String(this.model().batch) : "as it is";
  },
  showSizes(values) {
    const fields = Object.entries(this.model()?.sizes ?? {}).map(([name, usual]) => {
      const field = made("div", null, { class: "field" });
      field.append(made("label", name.replaceAll("_", " "), { for: `size-${name}` }));
      const input = made("input", null, {
        id: `size-${name}`, type: "number", min: "1", max: "10000000", step: "1", inputmode: "numeric",
        placeholder: usual ?? "follows", "data-size": name,
      });
      input.value = values[name] ?? "";
      field.append(input);
      return field;
    });
    byId("sizes").replaceChildren(...fields);
    byId("sizes-box").hidden = !fields.length;
  },
  showSpread() {
    const count = this.whole("count") ?? 1;
    byId("spread").hidden = count < 2;
    const [tensor, pipeline] = [this.whole("tensor") ?? 1, this.whole("pipeline") ?? 1];
    const hint = byId("spread-hint"), rest = count % (tensor * pipeline);
    hint.classList.toggle("bad", rest !== 0);
    hint.textContent = rest ? `${count} GPUs cannot be divided into ${tensor} x ${pipeline}` : this.spreadText(count, tensor, pipeline);
  },
  spreadText(count, tensor, pipeline) {
    const data = count / (tensor * pipeline), batch = this.whole("batch") ?? (this.source() === "model" ? this.model().batch : null);
    const micro = this.whole("microbatches") ?? 1;
    const one = tensor * pipeline > 1 ? `${data} replicas of ${tensor * pipeline} GPUs` : `${data} GPUs`;
    return batch ? `${one}, ${(batch * data * micro).toLocaleString("en")} samples in a step` : one;
  },
  spreadOut(count) {
    byId("count").value = count;
    byId("shard").value = "3";
    this.showSpread();
  },
  showAmounts() {
    const kind = byId("amount-kind").value;
    byId("amounts").hidden = !kind;
    byId("dataset-box").hidden = kind !== "epochs";
    byId("amount-label").textContent = { epochs: "Epochs", samples: "Samples", tokens: "Tokens", iterations: "Steps" }[kind] ?? "";
    byId("amount").placeholder = { epochs: "90", samples: "100 M", tokens: "20 G", iterations: "100 k" }[kind] ?? "";
  },

  // A number that people write as 20 G, 1.2M or 1,281,167.
  amount(id) {
    const match = /^([\d.]+)(?:e(\d+))?\s*([kmgbt]?)$/i.exec(byId(id).value.replaceAll(",", "").replaceAll("_", "").trim());
    const value = match ? Number(match[1]) * 10 ** Number(match[2] ?? 0) * { k: 1e3, m: 1e6, g: 1e9, b: 1e9, t: 1e12 }[match[3].toLowerCase()] || 0 : 0;
    const plain = match && !match[3] ? Number(match[1]) * 10 ** Number(match[2] ?? 0) : value;
    const good = plain > 0 && plain <= 1e18;
    this.complain(id, !good && byId(id).value !== "" ? "A number above 0, such as 90, 1.2 M or 2e9" : "");
    return good ? plain : null;
  },
  whole(id) {
    const input = byId(id), text = input.value.trim(), value = Number(text);
    const good = text !== "" && Number.isInteger(value) && value >= Number(input.min) && value <= Number(input.max);
    const most = Number(input.max).toLocaleString("en");
    // A browser hides what is no number at all, and says so.
    this.complain(id, !good && (text !== "" || input.validity.badInput) ? `A whole number from ${input.min} to ${most}` : "");
    return good ? value : null;
  },
  // Say at a field what is wrong with it; nothing to take that back.
  complain(id, text) {
    const input = byId(id), known = byId(`${id}-problem`);
    input.setAttribute("aria-invalid", String(text !== ""));
    if (!known && !text) return;
    const told = known ?? made("p", "", { id: `${id}-problem`, class: "hint bad", role: "alert" });
    if (!known) {
      input.closest(".field").after(told);
      input.setAttribute("aria-describedby", [input.getAttribute("aria-describedby"), told.id].filter(Boolean).join(" "));
    }
    told.textContent = text;
    told.hidden = !text;
  },

  addGpu() {
    const entry = byId("gpu"), text = entry.value.trim().toLowerCase();
    if (!text) return;
    const known = this.catalogue.gpus, hint = byId("gpu-hint");
    const near = known.filter(gpu => gpu.id.includes(text) || gpu.name.toLowerCase().includes(text));
    const gpu = known.find(one => one.id === text || one.name.toLowerCase() === text) ?? (near.length === 1 ? near[0] : null);
    hint.classList.toggle("bad", !gpu);
    if (!gpu) {
      hint.replaceChildren(near.length ? "Which one? " : "There is no GPU of that name", ...near.slice(0, 6).map(one => {
        const pick = made("button", one.id, { type: "button", class: "pick" });
        pick.addEventListener("mousedown", event => event.preventDefault());  // the field keeps the focus, and this button its place
        pick.addEventListener("click", () => { entry.value = one.id; this.addGpu(); });
        return pick;
      }));
      return;
    }
    entry.value = "";
    if (this.gpus.includes(gpu.id)) { hint.textContent = `${gpu.name} is there already`; return; }
    if (this.gpus.length >= this.catalogue.most_gpus) {
      hint.classList.add("bad");
      hint.textContent = `At most ${this.catalogue.most_gpus} at once: remove one first`;
      return;
    }
    hint.textContent = `${gpu.name} added`;
    this.setGpus([...this.gpus, gpu.id]);
    this.changed();
  },
  setGpus(ids) {
    this.gpus = ids;
    byId("gpus").replaceChildren(...ids.map(id => {
      const item = made("li", id), remove = made("button", "\u00d7", { type: "button", "aria-label": `Remove ${id}` });
      remove.disabled = ids.length === 1;
      remove.addEventListener("click", () => {
        this.setGpus(this.gpus.filter(other => other !== id));
        byId("gpu-hint").textContent = `${id} removed`;
        byId("gpu").focus({ preventScroll: true });
        this.changed();
      });
      item.append(remove);
      return item;
    }));
  },

  // The question that the controls ask, or null while they cannot be asked.
  question() {
    const isUpload = this.source() === "upload";
    if ((isUpload && !this.upload) || !this.gpus.length) return null;
    const question = { gpus: [...this.gpus] };
    if (isUpload) Object.assign(question, { trace: this.upload.trace, label: this.upload.label, origin: this.origin() });
    else Object.assign(question, { model: byId("model").value, sizes: this.sizes() });
    question.batch = byId("batch").disabled ? null : this.whole("batch");
    question.precision = this.precision() || null;
    if (this.catalogue.compiles && !isUpload) question.compile = byId("compile").checked;
    if (!byId("tuning").hidden) {
      question.adapters = byId("adapters").value || null;
      question.checkpointing = byId("checkpointing").checked;
    }
    question.parallel = this.parallel();
    question.training = this.training();
    return document.querySelector('#controls [aria-invalid="true"]') || !byId("spread").hidden && byId("spread-hint").classList.contains("bad") ? null : question;
  },
  origin() {
    const text = byId("origin").value.trim();
    return this.upload?.asksOrigin && this.catalogue.gpus.some(gpu => gpu.id === text) ? text : null;
  },
  sizes() {
    const sizes = {};
    for (const input of document.querySelectorAll("[data-size]")) {
      const value = this.whole(input.id);
      if (value !== null && value !== this.model().sizes[input.dataset.size]) sizes[input.dataset.size] = value;
    }
    return sizes;
  },
  parallel() {
    const count = this.whole("count") ?? 1;
    if (count < 2) return null;
    const [tensor, pipeline] = [this.whole("tensor") ?? 1, this.whole("pipeline") ?? 1];
    const shard = Number(byId("shard").value), microbatches = this.whole("microbatches") ?? 1;
    return { data: Math.max(1, Math.floor(count / (tensor * pipeline))), shard, tensor, pipeline, microbatches };
  },
  // What GPUs that are rented must keep to, or null while a field is wrong.
  limits() {
    const limits = { budget_usd: this.amount("budget"), deadline_h: this.amount("deadline"), most_gpus: this.whole("most-gpus") ?? 1 };
    return document.querySelector('#choose-gpus [aria-invalid="true"]') ? null : limits;
  },
  training() {
    const kind = byId("amount-kind").value, amount = kind ? this.amount("amount") : null;
    if (amount === null) return null;
    if (kind !== "epochs") return { [kind]: amount };
    const dataset = this.amount("dataset");
    return dataset === null ? null : { epochs: amount, dataset_samples: dataset };
  },

  // A question with the parameters of an address in it, and what of these is not known.
  readAddress(search, first) {
    const question = { ...first }, unknown = [], known = {
      model: this.catalogue.models.map(model => model.name),
      precision: this.catalogue.precisions,
      gpus: this.catalogue.gpus.map(gpu => gpu.id),
    };
    for (const [name, text] of new URLSearchParams(search)) {
      const values = name === "gpus" ? text.split(",") : [text];
      const wrong = known[name] ? values.find(value => !known[name].includes(value)) : undefined;
      if (wrong !== undefined) unknown.push(`${name} "${wrong.slice(0, 60)}" is not known; known are ${known[name].join(", ")}`);
      else if (known[name]) question[name] = name === "gpus" ? values : text;
      else if (name !== "batch") unknown.push(`"${name.slice(0, 60)}" is no part of a question in an address; model, batch, precision and gpus are`);
      else if (/^[1-9]\d{0,6}$/.test(text)) question.batch = Number(text);
      else unknown.push(`batch is a whole number from 1 to 9,999,999, not "${text.slice(0, 60)}"`);
    }
    return { question, unknown };
  },
  // Set all controls to a question that was asked before.
  set(question) {
    const source = document.querySelector(`input[name="source"][value="${question.trace ? "upload" : "model"}"]`);
    if (!source.disabled) source.checked = true;
    if (question.model) byId("model").value = question.model;
    this.showSizes(question.sizes ?? {});
    byId("sizes-box").open = Object.keys(question.sizes ?? {}).length > 0;
    this.showSource();
    byId("batch").value = question.batch ?? "";
    byId("origin").value = question.origin ?? "";
    this.setPrecision(question.precision ?? (question.model ? "fp32" : ""));
    byId("compile").checked = Boolean(question.compile);
    byId("adapters").value = question.adapters ?? "";
    byId("checkpointing").checked = Boolean(question.checkpointing);
    this.setGpus(question.gpus);
    const spread = question.parallel;
    byId("count").value = spread ? spread.data * spread.tensor * spread.pipeline : 1;
    for (const axis of ["tensor", "pipeline", "microbatches"]) byId(axis).value = spread?.[axis] ?? 1;
    byId("axes-box").open = Boolean(spread && (spread.tensor > 1 || spread.pipeline > 1 || spread.microbatches > 1));
    byId("shard").value = String(spread?.shard ?? 0);
    const kind = ["iterations", "samples", "tokens", "epochs"].find(name => question.training?.[name]);
    byId("amount-kind").value = kind ?? "";
    byId("amount").value = kind ? String(question.training[kind]) : "";
    byId("dataset").value = question.training?.dataset_samples ? String(question.training.dataset_samples) : "";
    this.showSpread();
    this.showAmounts();
  },
  setUpload(upload, about) {
    this.upload = upload;
    byId("file-name").textContent = upload ? upload.label : "Choose or drop a file";
    byId("file-about").textContent = about;
    this.showSource();
  },
};
