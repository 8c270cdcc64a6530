// Everything that was found: a line of time, a list, and one finding, or all of them, in full.

import * as address from "../address.js";
import { element } from "../dom.js";
import { FindingView } from "../finding.js";
import { step } from "../numbers.js";
import { follow, getJson } from "../server.js";
import { GLYPHS, severity, status, when } from "../words.js";

export const ALL = "all";

export async function open(query, onDetails) {
  const [run, diagnosis] = await Promise.all([getJson("run", { run: query.run }), getJson("diagnosis", { run: query.run })]);
  const page = new FindingsPage(run, diagnosis, query);
  onDetails({ name: run.name, badge: status(run.status) });
  return page;
}

class FindingsPage {
  constructor(run, diagnosis, query) {
    Object.assign(this, { run, diagnosis, views: [] });
    this.list = element("nav", { class: "list", "aria-label": "Findings" });
    this.place = element("div", { class: "chosen", "aria-live": "polite" });
    this.lanes = element("div", { class: "timeline", role: "img", "aria-label": "When each finding held" });
    this.title = element("h1", {});
    this.all = query.finding === ALL;
    this.chosen = Number(query.finding ?? Math.max(0, diagnosis.findings.findIndex((finding) => finding.code === query.code)));
    this.node = element("section", { class: "page" }, element("header", { class: "row" }, this.title), this.lanes,
      element("div", { class: this.all ? "" : "findings" }, this.all ? null : this.list, this.place));
    this.#draw();
  }

  begin() {
    let seen = this.run.journal;
    this.stop = follow(this.run.id, async ({ journal }) => {
      if (journal === seen) return;
      seen = journal;
      this.diagnosis = await getJson("diagnosis", { run: this.run.id }).catch(() => this.diagnosis);
      if (this.all) this.#draw();
      else this.#drawList();
    }, () => {});
  }

  end() {
    this.stop?.();
    this.views.forEach((view) => view.end());
  }

  get drawings() { return this.views.flatMap((view) => view.charts); }

  redraw() { for (const drawing of this.drawings) drawing.draw(); }

  /** Bring the first finding of a code into sight, where all are shown. */
  showCode(code) {
    const place = Math.max(0, this.diagnosis.findings.findIndex((finding) => finding.code === code));
    this.views[place]?.node.scrollIntoView();
  }

  #draw() {
    this.#drawList();
    const { findings } = this.diagnosis, shown = this.all ? findings : findings.slice(this.chosen, this.chosen + 1);
    this.views.forEach((view) => view.end());
    this.views = shown.map((finding) => new FindingView(this.run, finding));
    if (this.views.length) this.place.replaceChildren(...this.views.map((view) => view.node));
    else this.place.replaceChildren(element("p", {}, this.diagnosis.story));
  }

  #drawList() {
    const { findings } = this.diagnosis;
    this.title.textContent = findings.length === 0 ? "No findings" : findings.length === 1 ? "1 finding" : `${findings.length} findings`;
    this.list.replaceChildren(...findings.map((finding, place) => element("a", {
      href: address.link("findings", { run: this.run.id, finding: place }), "aria-current": place === this.chosen ? "true" : null,
      onclick: (event) => { event.preventDefault(); this.#choose(place); } },
    element("span", {}, severity(finding.severity), ` ${finding.code}`), element("span", {}, finding.name.replaceAll("-", " ")),
    element("span", { class: "quiet small" }, when(finding), finding.follows_from ? ` · follows from ${finding.follows_from}` : ""))));
    this.#drawLanes(findings);
  }

  #choose(place) {
    this.chosen = place;
    address.updateNow({ finding: place, code: null });
    this.#draw();
  }

  #drawLanes(findings) {
    const first = this.run.steps.first ?? 0, width = Math.max(1, (this.run.steps.last ?? 0) + 1 - first);
    this.lanes.replaceChildren(...findings.slice(0, 16).map((finding) => {
      const bar = element("div", { class: `bar ${finding.severity}`, title: `${finding.code} ${when(finding)}` });
      bar.style.left = `${(100 * (finding.first_step - first)) / width}%`;
      bar.style.width = `${(100 * (finding.last_step + 1 - finding.first_step)) / width}%`;
      return element("div", { class: "lane" }, element("span", { class: finding.severity }, `${GLYPHS[finding.severity]} ${finding.code}`), element("div", { class: "track" }, bar));
    }), ...(findings.length ? [element("div", { class: "lane axis quiet small" }, element("span", {}, "step"),
      element("div", { class: "row" }, element("span", {}, step(first)), element("span", { class: "grow" }), element("span", {}, step(this.run.steps.last))))] : []));
  }
}
