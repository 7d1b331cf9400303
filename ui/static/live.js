() => {
  // Live pictures: at every pause in typing, one picture is drawn and takes the place of the others.
  // Its switch is above the prompt where the server draws such pictures quickly enough.
  const PAUSE_MS = 120; // without a key
  const SETTLED_MS = 1000; // after which screen readers hear of the picture
  const AGAIN_MS = 5000; // between two questions whether there are live pictures
  const KEY = "sdxl-live";
  const apps = new WeakMap(); // the state of each app

  let isOn = false;
  try {
    isOn = localStorage.getItem(KEY) === "on";
  } catch {
    // this browser keeps nothing
  }
  const keep = () => {
    try {
      localStorage.setItem(KEY, isOn ? "on" : "off");
    } catch {
      // the storage is full
    }
  };

  const stateOf = (app) => {
    // The session tells an app's pictures from those of others behind the same address; it is no secret.
    const session = Math.random().toString(36).slice(2);
    const begun = { session, asked: -Infinity, isOffered: false, wanted: "" };
    if (!apps.has(app)) apps.set(app, begun);
    return apps.get(app);
  };
  const textsOf = (app) => JSON.parse(app.querySelector("#header [data-page]").dataset.page).live;
  const address = (app) => new URL("live", home(app));
  const fieldsOf = (app) => app.querySelector(".gradio-container").relay.kept.draft ?? {};
  const promptOf = (app) => {
    const { value, rows } = app.querySelector("#prompt textarea");
    const lines = rows > 1 ? value.split("\n") : [value];
    return lines.map((line) => line.trim()).filter(Boolean).at(-1) ?? "";
  };
  const draws = (app) => Boolean(app.querySelector("#status .running"));
  // Live pictures are drawn from words alone.
  const isPaused = (app) => app.querySelector("#ask").dataset.start !== undefined;

  // --- the picture ---

  const frameOf = (app) => app.querySelector("#live-picture");
  const makeFrame = (app) => {
    const frame = document.createElement("div");
    frame.id = "live-picture";
    frame.appendChild(document.createElement("p")).role = "status";
    return app.querySelector("#stage").appendChild(frame);
  };
  // The earlier picture stays until the new one can be shown without a gap.
  const show = async (app, blob, prompt, isWanted) => {
    const image = new Image();
    const name = `${textsOf(app).shown}: ${prompt}`;
    image.src = URL.createObjectURL(blob);
    image.alt = name;
    await image.decode().catch(() => {});
    if (!isWanted()) {
      URL.revokeObjectURL(image.src);
      return;
    }
    const frame = frameOf(app) ?? makeFrame(app);
    const earlier = frame.querySelector("img");
    frame.prepend(image);
    earlier?.remove();
    if (earlier) URL.revokeObjectURL(earlier.src);
    const state = stateOf(app);
    clearTimeout(state.settled);
    state.settled = setTimeout(() => { frame.querySelector("p").textContent = name; }, SETTLED_MS);
  };
  const clear = (app) => {
    const image = frameOf(app)?.querySelector("img");
    if (image) URL.revokeObjectURL(image.src);
    frameOf(app)?.remove();
    stateOf(app).wanted = "";
  };

  // --- asking for it ---

  const halt = (app) => {
    const state = stateOf(app);
    clearTimeout(state.due);
    clearTimeout(state.settled);
    state.asking?.abort();
    state.wanted = "";
  };
  const ask = async (app) => {
    const state = stateOf(app);
    const prompt = promptOf(app);
    const body = JSON.stringify({ session: state.session, prompt, fields: fieldsOf(app) });
    if (draws(app) || state.wanted === body) return;
    state.asking?.abort();
    const asking = new AbortController();
    Object.assign(state, { asking, wanted: body });
    try {
      const headers = { "Content-Type": "application/json" };
      const options = { method: "POST", body, headers, signal: asking.signal };
      const answer = await fetch(address(app), options);
      if (answer.status !== 200) return; // refused, or dropped for something else
      await show(app, await answer.blob(), prompt, () => state.asking === asking && !asking.signal.aborted);
    } catch {
      // it is not wanted any more, or the network is away
    }
  };
  const changed = (app) => {
    const state = stateOf(app);
    if (!isOn || !state.isOffered || isPaused(app)) return;
    clearTimeout(state.due);
    if (promptOf(app)) state.due = setTimeout(() => ask(app), PAUSE_MS);
    else if (!draws(app)) {
      halt(app);
      clear(app);
    }
  };

  // --- the switch ---

  const press = (app) => {
    isOn = !isOn;
    keep();
    for (const each of document.querySelectorAll("#live")) each.ariaPressed = String(isOn);
    if (isOn) changed(app);
    else {
      halt(app);
      clear(app);
    }
  };
  const offer = async (app) => {
    const state = stateOf(app);
    if (state.isOffered || performance.now() - state.asked < AGAIN_MS) return;
    state.asked = performance.now();
    const { live } = await fetch(address(app)).then((answer) => answer.json()).catch(() => ({}));
    const place = app.querySelector("#ask");
    if (!live || state.isOffered || !place) return;
    state.isOffered = true;
    const { name, info } = textsOf(app);
    const button = document.createElement("button");
    Object.assign(button, { id: "live", type: "button", textContent: name, title: info });
    button.ariaPressed = String(isOn);
    button.addEventListener("click", () => press(app));
    place.prepend(button);
    place.style.setProperty("--live-width", `${button.offsetWidth + 8}px`);
    pause(app);
  };
  // A picture to start from switches it off until the picture is removed, and a note says so.
  const pause = (app) => {
    const button = app.querySelector("#live");
    if (!button || button.disabled === isPaused(app)) return;
    button.disabled = !button.disabled;
    const { dataset } = app.querySelector("#length");
    if (button.disabled) {
      dataset.paused = textsOf(app).paused;
      halt(app);
      clear(app);
    } else delete dataset.paused;
  };

  // Fields that the page fills in send no such events, so they draw nothing.
  document.addEventListener("input", ({ target }) => {
    const app = target.closest?.("#ask") && around(target);
    if (!app) return;
    offer(app);
    changed(app);
  });
  document.addEventListener("click", ({ target }) => {
    const part = target.closest?.("#ask [data-look], #generate, [data-example]");
    const app = part && around(part);
    if (!app) return;
    if (part.matches("[data-look]")) changed(app);
    else halt(app);
  });
  document.addEventListener("keydown", ({ key, target }) => {
    const app = around(target);
    if (!app?.querySelector("#live")) return;
    if (key === "Enter" && target.matches?.("#prompt textarea")) halt(app);
    if (key === "Escape" && !draws(app)) {
      halt(app);
      clear(app);
    }
  });

  // The picture stays until those of a drawing, or their previews, take its place.
  const update = (app) => {
    if (!app.querySelector("#header [data-page]")) return;
    if (app.querySelector("#ask") && stateOf(app).asked < 0) offer(app);
    const state = stateOf(app);
    if (draws(app)) halt(app);
    if (frameOf(app) && (app.querySelector("#previews img") || (state.drew && !draws(app)))) clear(app);
    state.drew = draws(app);
  };
  const updateAll = () => document.querySelectorAll("gradio-app").forEach(update);
  new MutationObserver(updateAll).observe(document.body, { subtree: true, childList: true });
  new MutationObserver((changes) => {
    for (const { target } of changes) if (target.id === "ask") pause(around(target));
  }).observe(document.body, { subtree: true, attributeFilter: ["data-start"] });
  updateAll();
}
