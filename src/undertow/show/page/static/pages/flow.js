// How gradient travels from the loss to the inputs: modules in the order they run, and who feeds whom.

import * as address from "../address.js";
import { decode, markOf } from "../colours.js";
import { button, element, named } from "../dom.js";
import { flowTools } from "../flow_tools.js";
import { count, short, step as stepText } from "../numbers.js";
import { followSlowly, getJson, getTile } from "../server.js";
import { status, where } from "../words.js";

const HEIGHT = 24; // of a row
const ARCS = 150; // pixels for the connections
const MOST_TILES = 4;
const PACE = 60; // milliseconds a column while playing
const PLACES = { Source: "input side", Sink: "loss side" };
const SVG = "http://www.w3.org/2000/svg"; // a name, not an address: nothing is fetched from it

export async function open(query, onDetails, { again = () => {} } = {}) {
  const [run, flow] = await Promise.all([getJson("run", { run: query.run }), getJson("flow", { run: query.run })]);
  const tell = (state, trouble = "") => onDetails({ name: run.name, badge: trouble || status(state) });
  tell(run.status);
  const page = new FlowPage(run, flow, (isBusy) => followSlowly(run, tell, isBusy, again));
  await page.load(query.step === undefined ? null : Number(query.step));
  return page;
}

class FlowPage {
  constructor(run, flow, follow) {
    Object.assign(this, { run, flow, follow });
    this.nodes = flow.flow_network.nodes;
    this.edges = flow.flow_network.edges;
    this.place = new Map(this.nodes.map((node, place) => [node.layer_name, place]));
    this.critical = new Set(flow.critical_paths[0]?.layers ?? []);
    this.tiles = [];
    this.node = element("section", { class: "page flow" }, this.#head(), this.nodes.length ? this.#picture() : element("p", {}, "No gradients were recorded, so there is no flow to show."));
  }

  /** Newer numbers disturb nobody who looks at older ones. */
  begin() { this.stop = this.follow(() => this.playing || (this.slider && this.slider.value !== this.slider.max)); }

  end() {
    clearInterval(this.playing);
    this.stop?.();
  }

  #head() {
    const { network_metrics: metrics } = this.flow.flow_network, gain = metrics.loss_to_input_gain;
    const facts = [
      ["gain from loss to input", gain === null ? `not known: ${metrics.unavailable.loss_to_input_gain ?? "not measured"}` : short(gain)],
      ["main path carries", this.flow.critical_paths.length ? `${percent(this.flow.critical_paths[0].criticality_score)} of the gradient` : this.flow.unavailable.critical_paths ?? "–"],
      ["weakest link", this.flow.critical_paths[0]?.weakest_edge ? this.flow.critical_paths[0].weakest_edge.flatMap((name, place) => [place ? " → " : "", named(name)]) : "–"],
      ["bottlenecks", this.#named("Bottleneck")], ["dead", this.#named("Dead")],
      ["vanishing regions", this.flow.vanishing_regions.length || "none"], ["exploding regions", this.flow.exploding_regions.length || "none"],
    ];
    const { steps } = this.flow, outside = this.#outside();
    const source = { autograd: "read from the graph of the loss", "call order": "a chain in the order of calls: the model was compiled", none: "no graph was recorded" }[this.flow.source];
    return element("header", {}, element("h1", {}, "Flow"),
      element("p", { class: "quiet" }, `${count(this.nodes.length, "module")}, ${count(this.edges.length, "connection")}; ${source}. `,
        steps ? `Gains over steps ${stepText(steps.first)}–${stepText(steps.last)}.` : ""),
      outside.length ? element("p", { class: "problem" }, `${count(outside.length, "module")} with parameters ${outside.length === 1 ? "is" : "are"} on no path from the loss: `, where(outside, 4), ".") : null,
      element("dl", { class: "cards" }, facts.flatMap(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))));
  }

  /** The first few by name. */
  #named(type) {
    const found = this.nodes.filter((node) => node.node_type === type).map((node) => node.layer_name);
    return found.length ? where(found, 2) : "none";
  }

  /** Modules that own parameters, and that the graph of the loss does not lead to. */
  #outside() {
    if (this.flow.source !== "autograd") return [];
    const owners = new Set(this.run.layers.parameters.map((layer) => layer.path.slice(0, Math.max(0, layer.path.lastIndexOf(".")))));
    return [...owners].filter((owner) => owner && !this.place.has(owner));
  }

  #picture() {
    this.bars = this.nodes.map(() => element("div", { class: "bar" }));
    this.values = this.nodes.map(() => element("span", { class: "number" }));
    const rows = this.nodes.map((node, place) => this.#row(node, place));
    this.slider = element("input", { type: "range", min: "0", max: "0", value: "0", "aria-label": "Step", oninput: () => { this.#stop(); this.#show(Number(this.slider.value)); this.#remember(); } });
    this.play = button("Play", () => this.#toggle());
    this.now = element("output", { class: "quiet" });
    const head = element("div", { class: "flow-row head" }, element("span", {}, "feeds"), element("span", {}, "module"), element("span", {}, ""), element("span", {}, "gradient norm (log scale)"), element("span", { class: "number" }, ""), element("span", { class: "number", title: "what the modules it feeds send back, over the gradient they have" }, "gain"), element("span", { class: "number", title: "share of all gradient that passes through it; negative where it works against the rest" }, "share"));
    return element("div", {}, this.#key(), element("div", { class: "row scrub" }, this.play, this.slider, this.now, flowTools(this)),
      element("div", { class: "flow-rows" }, this.#arcs(), head, rows));
  }

  /** What lines and letters mean; only those that occur. */
  #key() {
    const kinds = new Set(this.edges.map((edge) => edge.edge_type?.toLowerCase()));
    const lines = ["strong", "weak", "intermittent", "blocked"].filter((kind) => kinds.has(kind)).map((kind) => {
      const svg = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "path");
      for (const [name, value] of Object.entries({ width: 22, height: 8, "aria-hidden": "true" })) svg.setAttribute(name, value);
      for (const [name, value] of Object.entries({ d: "M0 4 H22", class: `edge near ${kind}`, "stroke-width": 2 })) path.setAttribute(name, value);
      svg.append(path);
      return element("span", { class: "mark" }, svg, kind);
    });
    return element("p", { class: "row small quiet flow-key" }, lines, element("span", {}, "thick: much of the gradient takes this way; point at a module to see its lines"),
      this.critical.size ? element("span", {}, element("strong", {}, "bold"), ": on the path that most gradient takes") : null);
  }

  /** The lines of one module stand out while somebody points at it. */
  #point(place) {
    for (const { path, from, to } of this.drawn) path.classList.toggle("near", from === place || to === place);
    this.arcs.classList.toggle("pointed", place !== null);
  }

  #note(node) { return [PLACES[node.node_type], ...(this.flow.notes[node.layer_name] ?? [])].filter(Boolean).join(", "); }

  /** What is shown now, as data. */
  rows() {
    return this.nodes.map((node, place) => ({ name: node.layer_name, note: this.#note(node), gain: node.gain, share: node.flow_share, ...(this.shown?.[place] ?? { value: null, level: 0, bad: false }) }));
  }

  #row(node, place) {
    const note = this.#note(node);
    const critical = this.critical.has(node.layer_name);
    return element("div", { class: critical ? "flow-row critical-path" : "flow-row", title: critical ? "on the path that most gradient takes" : null,
      onpointerenter: () => this.#point(place), onpointerleave: () => this.#point(null) },
      element("span"), element("span", { class: "name" }, named(node.layer_name)), element("span", { class: /dead|vanish|explod|bottleneck|finite/.test(note) ? "small severe" : "small quiet" }, note),
      element("div", { class: "track" }, this.bars[place]), this.values[place], element("span", { class: "number" }, short(node.gain)),
      element("span", { class: "number quiet" }, percent(node.flow_share)));
  }

  /** A straight line to the next module, an arc over those that are skipped. Thick: much of the gradient takes this way. */
  #arcs() {
    const svg = this.arcs = document.createElementNS(SVG, "svg"), height = HEIGHT * this.nodes.length;
    this.drawn = [];
    for (const [name, value] of Object.entries({ width: ARCS, height, class: "arcs", role: "img", "aria-label": "Connections between modules" })) svg.setAttribute(name, value);
    const farthest = Math.max(2, ...this.edges.map((edge) => Math.abs((this.place.get(edge.to_layer) ?? 0) - (this.place.get(edge.from_layer) ?? 0))));
    for (const edge of this.edges) {
      const from = this.place.get(edge.from_layer), to = this.place.get(edge.to_layer);
      if (from === undefined || to === undefined) continue;
      const far = Math.abs(to - from), top = HEIGHT * (from + 0.5), bottom = HEIGHT * (to + 0.5), right = ARCS - 8;
      const bend = far < 2 ? 0 : 14 + (ARCS - 30) * (Math.log(far) / Math.log(farthest));
      const path = document.createElementNS(SVG, "path"), title = document.createElementNS(SVG, "title");
      path.setAttribute("d", `M${right} ${top} C${right - bend * 1.3} ${top} ${right - bend * 1.3} ${bottom} ${right} ${bottom}`);
      path.setAttribute("class", `edge ${(edge.edge_type ?? "unknown").toLowerCase()}`);
      path.setAttribute("stroke-width", String(width(carried(this.nodes[from], edge))));
      title.textContent = `${edge.from_layer.slice(0, 200)} → ${edge.to_layer.slice(0, 200)}: ${edge.flow_share === null ? "share not known" : `${percent(edge.flow_share)} of the gradient at ${edge.from_layer.slice(0, 200)}`}, gain ${short(edge.flow_strength)}${edge.edge_type ? `, ${edge.edge_type.toLowerCase()}` : ""}`;
      path.append(title);
      svg.append(path);
      if (far < 2) path.classList.add("next");
      this.drawn.push({ path, from, to });
    }
    for (let place = 0; place < this.nodes.length; place++) {
      const dot = document.createElementNS(SVG, "circle");
      for (const [name, value] of Object.entries({ cx: ARCS - 8, cy: HEIGHT * (place + 0.5), r: 3.2 })) dot.setAttribute(name, value);
      svg.append(dot);
    }
    return svg;
  }

  /** The norms of the whole run in a few tiles; first those at a step, or the newest. */
  async load(step) {
    const { run } = this, { last } = run.steps;
    if (!this.nodes.length || last === null || !run.quantities.some((one) => one.name === "gradient_norm")) return;
    this.level = Math.max(0, Math.ceil(Math.log2((last + 1) / (run.tile_columns * MOST_TILES))));
    const columns = Math.ceil((last + 1) / 2 ** this.level), tiles = Math.ceil(columns / run.tile_columns);
    const [scale, ...fetched] = await Promise.all([getJson("scale", { run: run.id, quantity: "gradient_norm" }),
      ...Array.from({ length: tiles }, (_, index) => getTile({ run: run.id, quantity: "gradient_norm", level: this.level, index }))]);
    this.scale = scale;
    this.tiles = fetched;
    const owners = new Map();
    run.layers.parameters.forEach((layer, index) => {
      const owner = layer.path.slice(0, Math.max(0, layer.path.lastIndexOf(".")));
      if (!owners.has(owner)) owners.set(owner, []);
      owners.get(owner).push(index);
    });
    const tensors = new Map(run.layers.parameters.map((layer, index) => [layer.path, [index]])); // without a graph they are the modules
    this.owned = this.nodes.map((node) => owners.get(node.layer_name) ?? tensors.get(node.layer_name) ?? []);
    this.measured = this.#measured(columns);
    this.slider.max = String(columns - 1);
    this.slider.value = Number.isFinite(step) && step !== null ? String(Math.floor(step / 2 ** this.level)) : this.slider.max;
    this.#show(Number(this.slider.value));
  }

  /** For each column the newest one up to there that has anything: a run is sampled. */
  #measured(columns) {
    const { tile_columns: wide } = this.run, members = this.owned.flat(), found = [];
    for (let column = 0, newest = null; column < columns; column++) {
      const { codes } = this.tiles[Math.floor(column / wide)];
      if (members.some((member) => markOf(codes[member * wide + (column % wide)]) !== "not sampled")) newest = column;
      found.push(newest);
    }
    return found;
  }

  #remember() { address.update({ step: this.slider.value === this.slider.max ? null : Number(this.slider.value) * 2 ** this.level }); }

  #show(asked) {
    const { tile_columns: columns } = this.run, column = this.measured?.[asked] ?? asked, tile = this.tiles[Math.floor(column / columns)], size = 2 ** this.level;
    if (!tile) return;
    const steps = (place) => (size === 1 ? `step ${stepText(place)}` : `steps ${stepText(place * size)}–${stepText((place + 1) * size - 1)} (largest)`);
    this.now.textContent = column === asked ? steps(asked) : `step ${stepText(asked * size)}, as measured at ${steps(column)}`;
    this.shown = this.owned.map((members, place) => {
      const codes = members.map((member) => tile.codes[member * columns + (column % columns)]);
      const marks = codes.map(markOf), numbers = codes.filter((_, index) => marks[index] === null).map(decode);
      const bad = marks.find((mark) => mark && /finite|∞/.test(mark)), norm = numbers.length ? Math.hypot(...numbers) : null;
      const level = norm ? Math.max(0.01, Math.min(1, Math.log(norm / this.scale.low) / Math.log(this.scale.high / this.scale.low))) : 0;
      this.bars[place].style.width = bad ? "100%" : `${100 * level}%`;
      this.bars[place].classList.toggle("bad", Boolean(bad));
      this.values[place].textContent = bad ? "not finite" : norm !== null ? short(norm) : marks.find((mark) => mark && mark !== "not sampled") ?? (members.length ? "not sampled" : "");
      return { value: bad ? "not finite" : norm, level: bad ? 1 : level, bad: Boolean(bad) };
    });
  }

  #toggle() {
    if (this.playing) { this.#stop(); return; }
    if (this.slider.value === this.slider.max) this.slider.value = "0";
    this.play.textContent = "Pause";
    this.playing = setInterval(() => {
      this.slider.value = String(Number(this.slider.value) + 1);
      this.#show(Number(this.slider.value));
      if (this.slider.value === this.slider.max) this.#stop();
    }, PACE);
  }

  #stop() {
    if (this.playing) this.#remember();
    clearInterval(this.playing);
    this.playing = null;
    this.play.textContent = "Play";
  }

  pause() { this.#toggle(); }
}

/** What a connection has of all gradient from the loss to the inputs. */
function carried(node, edge) { return node.flow_share === null || edge.flow_share === null ? null : node.flow_share * edge.flow_share; }

/** All gradient: four pixels. What is not known, or next to nothing, has a thin line. */
function width(share) { return share === null ? 0.8 : Math.max(0.8, Math.min(5, 4 * Math.abs(share))); }

/** Small ones with a digit, so that a branch that hardly counts is told from one that does not. */
function percent(share) {
  if (share === null) return "–";
  const value = 100 * share;
  return `${Math.abs(value) >= 10 || value === 0 ? Math.round(value) : Number(value.toPrecision(1))} %`;
}
