// Live pictures: at every pause in typing, one picture is drawn and takes the place of the others.
// Its switch is above the prompt where the server draws such pictures quickly enough.
import { appOf, forEachApp, kept, make } from "./app.js";

const PAUSE_MS = 120; // without a key
const SETTLED_MS = 1000; // after which screen readers hear of the picture
const AGAIN_MS = 5000; // between two questions whether there are live pictures
const PLACE = ["localStorage", "sdxl-live"];

let isOn = kept.read(...PLACE) === "on";
const switches = new Map(); // the apps by their switches

const promptOf = (app) => {
  const { value, rows } = app.find("#prompt textarea");
  const lines = rows > 1 ? value.split("\n") : [value];
  return lines.map((line) => line.trim()).filter(Boolean).at(-1) ?? "";
};

class Live {
  // The session tells an app's pictures from those of others behind the same address; it is no secret.
  #session = Math.random().toString(36).slice(2);
  #askedAt = -Infinity; // when the server was asked whether there are live pictures
  #button = null;
  #wanted = ""; // what was asked for last
  #shown = null; // the prompt and the seed of the picture in view
  #asking = null;
  #due;
  #settled;

  constructor(app) {
    this.app = app;
    this.address = new URL("live", app.home);
    this.texts = app.data.live;
  }

  // --- the picture ---

  get #frame() {
    return this.app.find("#live-picture");
  }

  // The earlier picture stays until the new one can be shown without a gap.
  async #show(blob, asked, isWanted) {
    const alt = `${this.texts.shown}: ${asked.prompt}`;
    const image = make("img", { src: URL.createObjectURL(blob), alt });
    await image.decode().catch(() => {});
    if (!isWanted()) {
      URL.revokeObjectURL(image.src);
      return;
    }
    if (!this.#frame) {
      this.app.find("#stage").append(make("div", { id: "live-picture" }, make("p", { role: "status" })));
    }
    this.#shown = asked;
    this.app.store.dispatch("lives", { isShown: true });
    const earlier = this.#frame.querySelector("img");
    this.#frame.prepend(image);
    if (earlier) URL.revokeObjectURL(earlier.src);
    earlier?.remove();
    clearTimeout(this.#settled);
    const note = this.#frame.querySelector("p");
    this.#settled = setTimeout(() => { note.textContent = alt; }, SETTLED_MS);
  }

  clear() {
    const image = this.#frame?.querySelector("img");
    if (image) URL.revokeObjectURL(image.src);
    this.#frame?.remove();
    this.#wanted = "";
    if (this.app.store.state.isLive) this.app.store.dispatch("lives", { isShown: false });
  }

  // The prompt and the seed of the picture in view, to be drawn in full quality.
  kept() {
    return this.#shown;
  }

  // --- asking for it ---

  halt() {
    clearTimeout(this.#due);
    clearTimeout(this.#settled);
    this.#asking?.abort();
    this.#wanted = "";
  }

  async #ask() {
    const { app } = this;
    const prompt = promptOf(app);
    const fields = app.page.relay.kept.draft ?? {};
    const body = JSON.stringify({ session: this.#session, prompt, fields });
    const asked = { prompt, seed: fields.seed || 0 };
    if (app.store.state.running || this.#wanted === body) return;
    this.#asking?.abort();
    const asking = new AbortController();
    const { signal } = asking;
    this.#asking = asking;
    this.#wanted = body;
    try {
      const headers = { "Content-Type": "application/json" };
      const answer = await fetch(this.address, { method: "POST", body, headers, signal });
      if (answer.status !== 200) return; // refused, or dropped for something else
      const isWanted = () => this.#asking === asking && !signal.aborted;
      await this.#show(await answer.blob(), asked, isWanted);
    } catch {
      // it is not wanted any more, or the network is away
    }
  }

  change() {
    const { running, hasStart } = this.app.store.state;
    if (!isOn || !this.#button || hasStart) return;
    clearTimeout(this.#due);
    if (promptOf(this.app)) this.#due = setTimeout(() => this.#ask(), PAUSE_MS);
    else if (!running) {
      this.halt();
      this.clear();
    }
  }

  // --- the switch ---

  get isOffered() {
    return this.#button !== null;
  }

  #press() {
    isOn = !isOn;
    kept.write(...PLACE, isOn ? "on" : "off");
    for (const [button, { store }] of switches) {
      button.ariaPressed = String(isOn);
      store.dispatch("live", { isOn });
    }
    if (isOn) this.change();
    else {
      this.halt();
      this.clear();
    }
  }

  async offer() {
    if (this.#button || performance.now() - this.#askedAt < AGAIN_MS) return;
    this.#askedAt = performance.now();
    const { live } = await fetch(this.address).then((answer) => answer.json()).catch(() => ({}));
    if (!live || this.#button) return;
    const { name, info } = this.texts;
    const button = make("button", { id: "live", type: "button", title: info }, name);
    button.ariaPressed = String(isOn);
    button.addEventListener("click", () => this.#press());
    switches.set(button, this.app);
    this.app.store.dispatch("live", { isOn });
    this.#button = button;
    const place = this.app.find("#ask");
    place.prepend(button);
    place.style.setProperty("--live-width", `${button.offsetWidth + 8}px`);
    this.pause();
  }

  // Live pictures are drawn from words alone: a picture to start from switches them off until it is
  // removed, and the status line says so.
  pause() {
    const { hasStart } = this.app.store.state;
    if (!this.#button || this.#button.disabled === hasStart) return;
    this.#button.disabled = hasStart;
    this.#button.title = hasStart ? this.app.data.status.paused : this.texts.info;
    if (!hasStart) return;
    this.halt();
    this.clear();
  }
}

const lives = new Map(); // by app
const liveOf = (part) => lives.get(appOf(part));

// Fields that the page fills in send no such events, so they draw nothing.
document.addEventListener("input", ({ target }) => {
  const live = target.closest?.("#ask") && liveOf(target);
  live?.offer();
  live?.change();
});
document.addEventListener("click", ({ target }) => {
  const part = target.closest?.("#ask [data-look], #generate, [data-example]");
  const live = part && liveOf(part);
  if (!live) return;
  if (part.matches("[data-look]")) live.change();
  else live.halt();
});
document.addEventListener("keydown", ({ key, target }) => {
  const live = liveOf(target);
  if (!live?.isOffered) return;
  if (key === "Enter" && target.matches?.("#prompt textarea")) live.halt();
  if (key === "Escape" && !live.app.store.state.running) {
    live.halt();
    live.clear();
  }
});

forEachApp((app) => app.whenOpen(() => {
  const live = new Live(app);
  app.live = live;
  lives.set(app, live);
  live.offer();
  app.store.subscribe(({ running, hasStart }, before) => {
    if (running) live.halt();
    if (!running && before.running) live.clear();
    if (hasStart !== before.hasStart) live.pause();
  });
  // The picture stays until those of a drawing, or their previews, take its place.
  app.watch("#previews", () => { if (app.find("#previews img")) live.clear(); });
}));
