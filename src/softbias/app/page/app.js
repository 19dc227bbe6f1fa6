// The page. Two panes at most, each a model (at a checkpoint) on the same picture; the query patch is shared.

import { drawMap, drawStage, largest } from "/page/maps.js";

const byId = (id) => document.getElementById(id);
const SHOWN = 24;
const TITLES = { "gradient-rollout": "rollout × gradients", rollout: "rollout" };
const view = { picture: "d0", first: 0, from: "patch", what: "attention", scale: "own", query: [0.5, 0.5], uploads: [] };
let state;
let panes = [];

function make(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("aria-")) made.setAttribute(key, String(value));
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

async function ask(path, options) {
  const answer = await fetch(path, options);
  if (!answer.ok) {
    const refusal = await answer.json().catch(() => ({}));
    throw new Error(refusal.error || `the server answered ${answer.status}`);
  }
  return answer;
}

function alertUser(error) {
  byId("alert").textContent = error ? `${error.message || error}` : "";
}

const percent = (p) => p >= 0.9995 && p < 1 ? "> 99.9 %" : p > 0 && p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`;

// One model

// One canvas for every head of a layer. Its label is completed when its map is drawn.
function headCanvases({ layer, heads }) {
  return Array.from({ length: heads }, (_, head) => make("canvas", { role: "img", "aria-label": `Layer ${layer}, head ${head}` }));
}

class Pane {
  constructor(model) {
    Object.assign(this, { model, checkpoint: null, target: null, overlay: "picture", layer: 0, look: null, rows: null, asked: 0 });
    this.build();
  }

  build() {
    const number = panes.length;
    this.select = make("select", { "aria-label": `Model ${number + 1}`, onchange: () => this.choose(Number(this.select.value)) });
    state.models.forEach((model, index) => this.select.append(make("option", { value: index, selected: index === this.model, title: model.start ? `started from ${model.start}` : "" }, model.name)));
    this.badge = make("span", { class: "badge", hidden: true });
    this.slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "Checkpoint", oninput: () => this.move() });
    this.when = make("output");
    this.slide = make("div", { class: "slide" }, make("span", {}, "training"), this.slider, this.when);
    this.stage = make("canvas", { class: "stage", tabindex: 0, role: "application", "aria-describedby": "where",
      onclick: (event) => this.click(event, this.stage), onkeydown: keys });
    this.over = make("fieldset", { class: "over" });
    this.big = make("p", { class: "big" });
    this.truth = make("p", { class: "truth" });
    this.classes = make("div", { class: "classes", role: "group", "aria-label": "Classes; choose one to see the evidence for it" });
    this.notes = make("div");
    this.layerSlider = make("input", { type: "range", min: 0, step: 1, "aria-label": "Layer", oninput: () => this.chooseLayer(Number(this.layerSlider.value)) });
    this.layerName = make("output");
    this.heads = make("div", { class: "heads" });
    this.layerPart = make("div", { class: "layer" }, make("div", { class: "slide" }, make("span", {}, "layer"), this.layerSlider, this.layerName), this.heads);
    this.maps = make("div", { class: "maps" });
    this.all = make("div", { class: "all" }, make("h3", {}, "Every head of every layer"), this.maps);
    this.failure = make("p", { class: "failure", role: "alert" });
    this.halves = make("div", { class: "halves" },
      make("div", { class: "top" }, make("div", {}, this.stage, this.over), make("div", {}, this.big, this.truth, this.classes, this.notes)),
      make("div", { class: "deep" }, this.layerPart, this.all));
    this.element = make("section", { class: "pane", "aria-label": `Model ${number + 1}` },
      make("div", { class: "pick" }, this.select, this.badge, this.slide), this.failure, this.halves);
    this.picture = new Image();
  }

  choose(model) {
    Object.assign(this, { model, checkpoint: null, target: null });
    this.prepare();
    return this.show().then(drawTraining);
  }

  // What depends on the model alone.
  prepare() {
    const { checkpoints } = state.models[this.model];
    this.slide.hidden = !checkpoints.length;
    this.slide.style.display = checkpoints.length ? "" : "none";
    this.slider.max = checkpoints.length;
    this.slider.value = checkpoints.length;
    this.showWhen();
  }

  showWhen() {
    const at = state.models[this.model].checkpoints[Number(this.slider.value)];
    const last = state.models[this.model].finished ? "final model" : "not finished";
    this.when.textContent = !at ? last : at.step === 0 ? "at the start" : at.epoch !== null ? `epoch ${at.epoch}` : `step ${at.step}`;
    this.slider.setAttribute("aria-valuetext", at ? `${this.when.textContent}, step ${at.step}` : last);
  }

  move() {
    const index = Number(this.slider.value);
    this.checkpoint = index < state.models[this.model].checkpoints.length ? index : null;
    this.showWhen();
    clearTimeout(this.later);
    this.later = setTimeout(() => this.show().then(drawTraining), 60);
  }

  address(path) {
    const parts = { model: this.model, picture: view.picture };
    if (this.checkpoint !== null) parts.checkpoint = this.checkpoint;
    if (this.target !== null) parts.target = this.target;
    return `${path}?${new URLSearchParams(parts)}`;
  }

  // Ask for everything about the picture, then for the rows of the query.
  async show() {
    const turn = ++this.asked;
    this.element.classList.add("busy");
    try {
      const source = `/api/picture/${view.picture}?model=${this.model}`;
      const loaded = this.source === source ? Promise.resolve() : new Promise((done, fail) => {
        this.picture = new Image();
        this.picture.onload = done;
        this.picture.onerror = () => fail(new Error("the picture could not be loaded"));
        this.picture.src = source;
        this.source = source;
      });
      const look = await (await ask(this.address("/api/explanation"))).json();
      await loaded;
      if (turn !== this.asked) return;
      this.look = look;
      this.fail("");
      this.layer = Math.min(this.layer, Math.max(0, look.layers.length - 1));
      offer();
      this.drawDecision();
      this.buildMaps();
      await this.askRows();
    } catch (error) {
      this.source = null;
      if (turn === this.asked) this.fail(error.message);
    } finally {
      if (turn === this.asked) this.element.classList.remove("busy");
    }
  }

  // A message in place of everything: maps of another checkpoint or picture would be wrong here.
  fail(text) {
    this.failure.textContent = text;
    this.halves.hidden = !!text;
    if (text) this.badge.hidden = true;
  }

  query() {
    const [height, width] = this.look.grid;
    return [Math.min(height - 1, Math.floor(view.query[0] * height)), Math.min(width - 1, Math.floor(view.query[1] * width))];
  }

  async askRows() {
    if (!this.look || !this.look.grid) return this.drawStage();
    const turn = this.rowsAsked = (this.rowsAsked || 0) + 1;
    const [row, column] = this.query();
    const token = view.from === "token" && view.what === "attention";
    const query = token ? "token" : row * this.look.grid[1] + column;
    this.element.setAttribute("aria-busy", "true");
    try {
      const bytes = await (await ask(`${this.address("/api/maps")}&query=${query}`)).arrayBuffer();
      if (turn !== this.rowsAsked) return;
      this.unpack(new Float32Array(bytes), token);
      this.drawStage();
      this.drawMaps();
    } finally {
      if (turn === this.rowsAsked) this.element.removeAttribute("aria-busy");
    }
  }

  unpack(values, token) {
    const patches = this.look.grid[0] * this.look.grid[1];
    let start = 0;
    const take = (count) => Array.from({ length: count }, () => values.subarray(start, start += patches));
    this.rows = new Map();
    this.bias = new Map();
    for (const layer of this.look.layers) if (!token || layer.token) this.rows.set(layer.layer, take(layer.heads));
    if (!token) for (const layer of this.look.layers) if (layer.bias) this.bias.set(layer.layer, take(layer.heads));
  }

  drawDecision() {
    const { look } = this;
    this.big.textContent = look.label;
    this.badge.hidden = !look.weights.startsWith("untrained");
    this.badge.textContent = look.weights;
    const wrong = look.truth !== null && look.truth !== look.label;
    this.truth.textContent = look.truth === null ? "your picture" : wrong ? `labeled ${look.truth}` : "as labeled";
    this.truth.className = wrong ? "truth wrong" : "truth soft";
    this.classes.replaceChildren(...look.classes.slice(0, 6).map(({ number, name, p }) => {
      const bar = make("i");
      bar.style.setProperty("--p", `${Math.max(0.5, 100 * p)}%`);
      return make("button", { type: "button", class: "class", "aria-pressed": number === look.target, title: `Show the evidence for ${name}`,
        onclick: () => { this.target = number; this.show(); } }, make("span", {}, name), make("b", {}, percent(p)), bar);
    }));
    this.notes.replaceChildren(...look.notes.map((note) => make("p", { class: "note" }, note)));
    const ways = [["picture", "picture"], ...look.relevance.map(({ method, title }) => [method, TITLES[method] || title])];
    if (!ways.some(([value]) => value === this.overlay)) this.overlay = "picture";
    const group = `over${panes.indexOf(this)}`;
    this.over.replaceChildren(make("legend", {}, `What counts for ${look.target_name}`), ...ways.map(([value, title]) => make("label", {},
      make("input", { type: "radio", name: group, value, checked: value === this.overlay, onchange: () => chooseOverlay(value) }),
      make("span", {}, title))));
    const size = look.grid ? `${look.grid[0]} by ${look.grid[1]} patches; arrow keys move the query patch` : "no patches to look from";
    this.stage.setAttribute("aria-label", `The picture as the model sees it: ${size}`);
    this.layerPart.hidden = this.all.hidden = !look.layers.length;
  }

  drawStage() {
    if (!this.picture.naturalWidth || !this.look) return;
    const heat = this.look.relevance.find(({ method }) => method === this.overlay);
    drawStage(this.stage, this.picture, this.look.grid, view.from === "token" || !this.look.grid ? null : this.query(), heat);
  }

  // Canvases for every head; they are filled whenever the query moves.
  buildMaps() {
    const { layers } = this.look;
    const shape = layers.map(({ layer, heads }) => `${layer}:${heads}`).join();
    if (shape !== this.shape) {
      this.shape = shape;
      this.lines = layers.map((layer, index) => {
        const cells = headCanvases(layer);
        const grid = make("div", { class: "cells" }, ...cells);
        grid.style.setProperty("--heads", Math.min(layer.heads, 12));
        const button = make("button", { type: "button", onclick: () => this.chooseLayer(index) }, `layer ${layer.layer}`, make("small", {}, layer.kind));
        const line = make("div", { class: "line", onclick: (event) => event.target.tagName === "CANVAS" && this.chooseLayer(index) }, button, grid);
        return { line, cells, button };
      });
      this.maps.replaceChildren(...this.lines.map(({ line }) => line));
      this.layerSlider.max = Math.max(0, layers.length - 1);
    }
    this.buildHeads();
  }

  buildHeads() {
    const layer = this.look.layers[this.layer];
    if (!layer) return;
    this.layerSlider.value = this.layer;
    this.layerName.textContent = `${layer.layer} · ${layer.kind}`;
    this.layerSlider.setAttribute("aria-valuetext", `layer ${layer.layer}, ${layer.kind}`);
    this.large = headCanvases(layer);
    this.heads.replaceChildren(...this.large.map((canvas, head) => {
      canvas.addEventListener("click", (event) => this.click(event, canvas));
      const gate = layer.gates ? layer.gates[head] : null;
      const figure = make("figure", {}, canvas, make("figcaption", {}, make("span", {}, `head ${head}`), gate === null ? "" : make("span", {}, `position ${Math.round(100 * gate)} %`)));
      if (gate !== null) {
        const bar = make("div", { class: "gate", title: "The gate: the share of positional attention in this head" });
        bar.style.setProperty("--p", `${100 * gate}%`);
        figure.append(bar);
      }
      return figure;
    }));
    this.lines.forEach(({ line, button }, index) => {
      line.toggleAttribute("data-on", index === this.layer);
      button.setAttribute("aria-pressed", index === this.layer);
    });
  }

  chooseLayer(index) {
    this.layer = index;
    this.buildHeads();
    this.drawMaps();
  }

  drawMaps() {
    const { layers, grid } = this.look;
    const source = view.what === "bias" ? this.bias : this.rows;
    const query = view.from === "token" && view.what === "attention" ? null : this.query();
    layers.forEach((layer, index) => {
      const rows = source.get(layer.layer);
      const most = rows && view.scale === "layer" ? Math.max(...rows.map(largest)) : null;
      const draw = (canvas, head) => {
        if (!rows) return this.drawEmpty(canvas, grid, layer, head);
        drawMap(canvas, rows[head], grid, most || largest(rows[head]), query);
        const peak = rows[head].reduce((best, value, at, all) => Math.abs(value) > Math.abs(all[best]) ? at : best, 0);
        canvas.setAttribute("aria-label", `Layer ${layer.layer}, head ${head}: most at row ${Math.floor(peak / grid[1])}, column ${peak % grid[1]}`);
        canvas.title = `layer ${layer.layer}, head ${head}: largest value ${rows[head][peak].toPrecision(2)}`;
      };
      this.lines[index].cells.forEach(draw);
      if (index === this.layer) this.large.forEach(draw);
    });
  }

  drawEmpty(canvas, [height, width], layer, head) {
    canvas.width = 12 * width;
    canvas.height = 12 * height;
    const context = canvas.getContext("2d");
    context.strokeStyle = "rgba(140, 150, 160, .6)";
    context.setLineDash([4, 4]);
    context.strokeRect(1, 1, canvas.width - 2, canvas.height - 2);
    const why = view.what === "bias" ? "has learned no mask and no positional attention" : "has no class token";
    canvas.setAttribute("aria-label", `Layer ${layer.layer}, head ${head}: this layer ${why}`);
    canvas.title = `this layer ${why}`;
  }

  click(event, canvas) {
    const box = canvas.getBoundingClientRect();
    moveTo((event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width);
  }
}

// The same way to explain in both panes, where both have it.
function chooseOverlay(value) {
  for (const pane of panes) {
    if (!pane.look || (value !== "picture" && !pane.look.relevance.some(({ method }) => method === value))) continue;
    pane.overlay = value;
    pane.over.querySelector(`input[value="${value}"]`).checked = true;
    pane.drawStage();
  }
}

// The query patch

async function moveTo(row, column) {
  const start = performance.now();
  view.query = [row, column].map((value) => Math.min(0.9999, Math.max(0, value)));
  if (view.from === "token") document.querySelector("input[name=from][value=patch]").checked = !!(view.from = "patch");
  showWhere();
  await together((pane) => pane.askRows());
  byId("timing").textContent = `Last answer after ${Math.round(performance.now() - start)} ms.`;
}

function keys(event) {
  const pane = panes.find(({ stage }) => stage === event.currentTarget);
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (!(event.key in steps) || !pane.look || !pane.look.grid) return;
  event.preventDefault();
  const [height, width] = pane.look.grid;
  const [row, column] = pane.query();
  const next = [row + steps[event.key][0], column + steps[event.key][1]];
  if (next[0] < 0 || next[1] < 0 || next[0] >= height || next[1] >= width) return;
  moveTo((next[0] + 0.5) / height, (next[1] + 0.5) / width);
}

function showWhere() {
  const pane = panes.find(({ look }) => look && look.grid);
  const signed = panes.some(({ look }) => look && look.layers.some((layer) => layer.signed));
  const where = !pane ? "This model has no attention maps." : view.from === "token" && view.what === "attention"
    ? "Looking from the class token." : `Looking from row ${pane.query()[0]}, column ${pane.query()[1]}: click another patch, or use the arrow keys on the picture.`;
  const what = view.what === "bias" ? " These maps are the same for every picture: what heads have learned about positions, as masks or positional attention."
    : signed ? " Blue is negative." : "";
  byId("where").textContent = pane ? where + what : where;
}

// A choice that no model here offers is disabled.
function offer() {
  const layers = panes.flatMap(({ look }) => look ? look.layers : []);
  for (const [name, value, has] of [["from", "token", layers.some(({ token }) => token)], ["what", "bias", layers.some(({ bias }) => bias)]]) {
    const input = document.querySelector(`input[name=${name}][value=${value}]`);
    input.disabled = !has;
    if (!has && view[name] === value) {
      const other = document.querySelector(`input[name=${name}]:not([value=${value}])`);
      other.checked = true;
      view[name] = other.value;
    }
  }
}

const together = (work) => Promise.all(panes.map((pane) => work(pane))).catch(alertUser);

// Pictures

function drawThumbs() {
  const last = Math.min(view.first + SHOWN, state.data.pictures);
  const names = [...view.uploads.slice().reverse(), ...Array.from({ length: last - view.first }, (_, index) => `d${view.first + index}`)];
  byId("thumbs").replaceChildren(...names.map((name) => make("button", { type: "button", class: "thumb", "data-name": name, "aria-pressed": name === view.picture,
    "aria-label": name.startsWith("u") ? `Your picture ${Number(name.slice(1)) + 1}` : `Picture ${name.slice(1)}`, onclick: () => choosePicture(name) },
    make("img", { src: `/api/picture/${name}`, alt: "", loading: "lazy" }))));
  byId("earlier").disabled = view.first === 0;
  byId("later").disabled = last >= state.data.pictures;
}

async function choosePicture(name) {
  alertUser("");
  view.picture = name;
  for (const thumb of document.querySelectorAll(".thumb")) thumb.setAttribute("aria-pressed", thumb.dataset.name === name);
  for (const pane of panes) pane.target = null;
  await together((pane) => pane.show());
  showWhere();
}

async function upload(file) {
  if (!file) return;
  alertUser("");
  try {
    if (file.size > 16 * 2 ** 20) throw new Error("a picture may have at most 16 MB");
    const type = file.type.startsWith("image/") ? file.type : "application/octet-stream";
    const { id } = await (await ask("/api/pictures", { method: "POST", body: file, headers: { "content-type": type } })).json();
    view.uploads = [...view.uploads, id].slice(-24);
    drawThumbs();
    await choosePicture(id);
  } catch (error) {
    alertUser(error);
  }
  byId("file").value = "";
}

// Training

const trainings = new Map();

async function training(model) {
  if (!trainings.has(model)) trainings.set(model, await (await ask(`/api/training?model=${model}`)).json());
  return trainings.get(model);
}

// The server draws the charts, as it does for every page.
async function drawTraining() {
  const runs = state.models.map((model, number) => ({ ...model, number })).filter(({ run }) => run);
  byId("training").hidden = !runs.length;
  if (!runs.length) return;
  const gated = [...new Map(panes.filter(({ model }) => state.models[model].run).map((pane) => [pane.model, pane])).values()];
  const addresses = ["/api/charts", ...gated.map(({ model, checkpoint }) => `/api/charts?model=${model}${checkpoint === null ? "" : `&checkpoint=${checkpoint}`}`)];
  const charts = await Promise.all(addresses.map(async (address) => (await ask(address)).text())).catch((error) => alertUser(error) || []);
  byId("charts").replaceChildren(document.createRange().createContextualFragment(charts.join("")));
  byId("training-text").textContent = byId("charts").children.length ? "Plain lines: training, on augmented pictures. Lines with markers: validation." : "These runs have no metrics.";
  const found = await Promise.all(runs.map(async (run) => ({ ...run, ...await training(run.number) })));
  byId("reports").replaceChildren(...found.map(({ name, number, test, report }) => {
    const score = test ? ` ${percent(test.accuracy)} of ${test.n.toLocaleString("en")} test pictures (95 % interval ${percent(test.accuracy_interval[0])} to ${percent(test.accuracy_interval[1])}).` : "";
    return make("p", {}, make("strong", {}, name), score, report ? " " : "", report ? make("a", { href: `/report/${number}`, target: "_blank", rel: "noopener" }, "Its report") : "");
  }));
}

// Beginning

function addPane(model) {
  const pane = new Pane(model);
  panes.push(pane);
  byId("panes").append(pane.element);
  byId("panes").classList.toggle("two", panes.length > 1);
  pane.prepare();
  return pane;
}

function listen() {
  for (const name of ["from", "what", "scale"]) {
    byId(name).addEventListener("change", async (event) => {
      view[name] = event.target.value;
      showWhere();
      await together((pane) => pane.askRows());
    });
  }
  byId("compare").addEventListener("change", async (event) => {
    if (event.target.checked) await addPane(panes[0].model + 1 < state.models.length ? panes[0].model + 1 : 0).show();
    else {
      panes.pop().element.remove();
      byId("panes").classList.remove("two");
    }
    showWhere();
    await drawTraining();
  });
  const page = (step) => { view.first = Math.max(0, view.first + step); drawThumbs(); };
  byId("earlier").addEventListener("click", () => page(-SHOWN));
  byId("later").addEventListener("click", () => page(SHOWN));
  byId("file").addEventListener("change", (event) => upload(event.target.files[0]));
  document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    upload(event.dataTransfer.files[0]);
  });
}

async function begin() {
  if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname);  // the cookie has it now
  state = await (await ask("/api/state")).json();
  byId("data-name").textContent = `${state.data.name}, ${state.data.pictures.toLocaleString("en")}`;
  byId("about").textContent = `softbias ${state.version}. Only somebody who has its token can open this page.`;
  drawThumbs();
  listen();
  await addPane(0).show();
  showWhere();
  await drawTraining();
  if (state.notes.length) alertUser(state.notes.join(" "));
  document.documentElement.dataset.ready = "true";
}

begin().catch(alertUser);
