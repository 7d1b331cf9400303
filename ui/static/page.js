() => {
  // The page's own behaviour in the browser: keys, focus, copying, and names for screen readers.

  // In a frame of another page, which has its own header and footer, ours are hidden.
  const compact = alone && new URLSearchParams(location.search).get("embed") === "1";
  root.classList.toggle("sdxl-compact", Boolean(compact));

  const isSeen = (part) => Boolean(part?.offsetParent);
  const press = (button) => {
    if (!isSeen(button)) return false;
    button.click();
    return true;
  };

  const closePicture = (app) => {
    const close = app.querySelector("#gallery .preview [data-named='Close']");
    close?.click();
    return close;
  };

  // Each chip opens the panel of its name, and closes it. One panel is open at a time.
  const nameOf = (part) => part.id.replace(/^(chip|panel)-/, "");
  const openPanel = (app, name) => {
    const ask = app.querySelector("#ask");
    if (ask.dataset.panel === name) return;
    ask.dataset.panel = name;
    showPanels(app);
  };
  const showPanels = (app) => {
    const { panel } = app.querySelector("#ask").dataset;
    for (const chip of app.querySelectorAll("#chips [id^=chip-]")) {
      chip.setAttribute("aria-expanded", String(nameOf(chip) === panel));
      chip.setAttribute("aria-controls", `panel-${nameOf(chip)}`);
    }
    const name = app.querySelector("#randomise").textContent.trim();
    app.querySelector("#free-seed")?.setAttribute("aria-label", name);
  };
  document.addEventListener("click", ({ target }) => {
    const chip = target.closest?.("[id^=chip-]");
    const app = chip && around(chip);
    if (!app) return;
    const isOpen = chip.getAttribute("aria-expanded") === "true";
    openPanel(app, isOpen ? "" : nameOf(chip));
  });
  const closePanel = (app, from) => {
    const open = from.closest?.(".chip-panel, #chips") && app.querySelector("#ask").dataset.panel;
    if (!open) return false;
    app.querySelector(`#chip-${open}`).focus();
    openPanel(app, "");
    return true;
  };

  // With one line Enter sends; with several it begins a new line. Shift reverses this.
  const sends = ({ key, shiftKey, target }) => (
    key === "Enter" && target.matches?.("#prompt textarea") && shiftKey === target.rows > 1
  );

  // Buttons that a key that is held down presses once.
  const ONCE = "#generate, #stop, #surprise, [data-example]";
  // Whether the prompt waits for the end of the present drawing: `waiting.js` decides.
  const waits = (app, { repeat }) => {
    const prompt = app.querySelector("#prompt textarea").value;
    const detail = { prompt, repeat };
    const entered = new CustomEvent("entered", { bubbles: true, cancelable: true, detail });
    return app.querySelector("#waiting [data-next]")?.dispatchEvent(entered) === false;
  };

  // Captured before the fields see it, because in some of them Enter has a meaning of its own.
  document.addEventListener("keydown", (event) => {
    const app = around(event.target);
    if (!app) return;
    // A key that is held down presses once, and not also the button that appears in its place.
    if (event.repeat && event.target.closest?.(ONCE)) event.preventDefault();
    const runs = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    if ((runs || sends(event)) && waits(app, event)) return swallow(event);
    if (runs && !event.repeat && press(app.querySelector("#generate"))) swallow(event);
  }, true);
  document.addEventListener("keydown", (event) => {
    const app = around(event.target);
    if (!app || event.key !== "Escape" || event.defaultPrevented) return;
    const stop = () => press(app.querySelector("#stop"));
    if (stop()) return;
    if (closePanel(app, event.target) || closePicture(app)) return;
    // A request sent just now has no Stop yet: wait for it, for 2 s or until the next press.
    const again = setInterval(() => { if (stop()) clearInterval(again); }, 50);
    const enough = () => clearInterval(again);
    setTimeout(enough, 2000);
    for (const other of ["keydown", "pointerdown"]) {
      document.addEventListener(other, enough, { once: true, capture: true });
    }
  });

  // Whether a click belongs to a double click, by the system's count or within 500 ms.
  const follows = (event, before) => event.detail > 1 || event.timeStamp - before < 500;

  // Gradio registers a press a moment late, when Stop appears. Until then only the first counts.
  const pressed = new WeakMap(); // the time of the press that counts, by app
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#generate, #new-seed, #larger, #finish");
    const app = button && around(button);
    if (!app) return;
    if (follows(event, pressed.get(app) ?? -Infinity)) event.stopPropagation();
    else pressed.set(app, event.timeStamp);
  }, true);

  // Stop appears under the pointer that pressed Generate, and vice versa: a click that follows at
  // once is the rest of a double click, and is ignored. Presses by key (`detail` 0) are not.
  let aimed = null; // id of the button that was clicked last, and when
  document.addEventListener("click", (event) => {
    const id = event.target.closest?.("#generate, #stop")?.id;
    if (!id || !around(event.target) || !event.detail) return;
    const rest = aimed && aimed.id !== id && follows(event, aimed.at);
    if (rest) swallow(event);
    aimed = { id: rest ? aimed.id : id, at: event.timeStamp };
  }, true);

  // An example goes into the prompt and is drawn. Generate is hidden while something is drawn.
  const draw = (app, prompt) => {
    const field = app.querySelector("#prompt textarea");
    field.value = prompt;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    press(app.querySelector("#generate"));
  };
  let surprised = null; // the app in which Surprise was pressed
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-example], #surprise");
    const app = button && around(button);
    if (!app) return;
    if (event.detail > 1) swallow(event);
    else if (button.id) surprised = app;
    else draw(app, button.dataset.example);
  }, true);
  document.addEventListener("sdxl-surprise", ({ detail }) => draw(surprised, detail));

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // pages without HTTPS have no clipboard
      const field = document.body.appendChild(document.createElement("textarea"));
      field.value = text;
      field.select();
      document.execCommand("copy");
      field.remove();
    }
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy], [data-link]");
    if (!button || !around(button)) return;
    const { copy: text, link } = button.dataset;
    await copy(text ?? new URL(link, home(button)).href);
    const said = button.textContent;
    if (said === button.dataset.copied) return;
    button.textContent = button.dataset.copied;
    setTimeout(() => { button.textContent = said; }, 1500);
  });

  // The field that a refusal names is marked until the message goes, and gets the focus.
  const fieldOf = (app, id) => {
    if (id !== "start") return app.querySelector(`#${id} :is(textarea, input)`);
    const isChosen = app.querySelector("#ask").dataset.start !== undefined;
    return app.querySelector(isChosen ? "#start [data-do=mark]" : "#restore-picture button");
  };
  const refusals = new WeakMap(); // the message that was told last, by app
  const markRefused = (app) => {
    const said = app.querySelector("#status [data-field]");
    const field = said && fieldOf(app, said.dataset.field);
    for (const other of app.querySelectorAll("[data-refused]")) {
      if (other === field) continue;
      other.removeAttribute("aria-invalid");
      delete other.dataset.refused;
    }
    if (!field || said === refusals.get(app)) return;
    refusals.set(app, said);
    field.dataset.refused = "";
    if (!field.matches("button")) field.ariaInvalid = "true";
    const panel = field.closest(".chip-panel");
    if (panel) openPanel(app, nameOf(panel));
    field.focus();
  };

  const dressStyles = (app, pictures) => {
    for (const label of app.querySelectorAll("#style label:not([data-pictured])")) {
      const picture = pictures[label.querySelector("input").value];
      if (!picture) continue;
      label.dataset.pictured = "";
      label.style.setProperty("--picture", `url("${new URL(picture, home(label))}")`);
    }
  };

  const showCards = (app) => {
    for (const image of app.querySelectorAll("#cards img:not([src])")) {
      image.src = new URL(image.dataset.src, home(image));
    }
  };

  // When the focused element disappears, the focus moves to the element that takes its place.
  let focused = null;
  let owner = null; // the app that the focused element is in
  let picture = 0; // index of the picture that is open, or was
  document.addEventListener("focusin", ({ target }) => {
    focused = target;
    owner = around(target);
  });
  const heir = (app) => {
    if (focused.closest("#free-seed")) return app.querySelector("#chip-seed");
    if (focused.closest("#generate, #stop")) {
      return [...app.querySelectorAll("#generate, #stop")].find(isSeen);
    }
    if (focused.closest("#reveal, #blur")) {
      return [...app.querySelectorAll("#reveal, #blur")].find(isSeen);
    }
    if (focused.closest("#pasted")) return app.querySelector("#prompt textarea");
    const card = [...app.querySelectorAll("#cards button")].indexOf(focused);
    if (card >= 0) return app.querySelectorAll("#gallery .thumbnail-lg")[card];
    const open = focused.closest(".preview, #picked, #walk");
    return open && app.querySelectorAll("#gallery .thumbnail-lg")[picture];
  };
  const keepFocus = (app) => {
    if (app !== owner) return;
    const opened = [...app.querySelectorAll("#gallery .thumbnail-small")];
    if (opened.length) picture = opened.findIndex((each) => each.matches(".selected"));
    const lost = [focused, document.body].includes(document.activeElement);
    if (lost && !focused.checkVisibility()) heir(app)?.focus();
  };

  const update = (app) => {
    const heading = app.querySelector("#header [data-page]");
    if (!heading) return; // it is not there yet, or this app is another program's
    const draws = Boolean(app.querySelector("#status .running"));
    if (draws) pressed.delete(app);
    // One request at a time, because all show their pictures in the same place.
    const more = app.querySelectorAll("#new-seed, #variations, #larger, #finish");
    for (const button of more) button.disabled = draws;
    for (const link of alone ? [] : app.querySelectorAll(".downloads a")) {
      link.href = new URL(link.getAttribute("href"), home(link));
    }
    // A model that draws only from pictures begins with their panel.
    const ask = app.querySelector("#ask");
    if (heading.matches("[data-masks]") && ask && ask.dataset.panel === undefined) {
      ask.dataset.panel = "picture";
    }
    showPanels(app);
    showCards(app);
    dressStyles(app, JSON.parse(heading.dataset.page).pictures);
    markRefused(app);
    keepFocus(app);
  };
  const updateAll = () => document.querySelectorAll("gradio-app").forEach(update);
  new MutationObserver(updateAll).observe(document.body, { subtree: true, childList: true });
  updateAll();
}
