() => {
  // What the page does in the browser alone: keys, the focus, copying, and names for screen readers.
  // Gradio calls this function once.
  const root = document.documentElement;
  if (root.dataset.sdxl) return;
  root.dataset.sdxl = "ready";

  // All of the page is ours, unless we are an element of another's: then what is in the element is,
  // and only there do we look for anything.
  const alone = document.querySelector("gradio-app:not([src], [space])");
  const around = (part) => part.closest?.("gradio-app") ?? alone;

  // In a frame of another page, which has a heading and a foot of its own.
  const compact = alone && new URLSearchParams(location.search).get("embed") === "1";
  root.classList.toggle("sdxl-compact", Boolean(compact));

  // Where the program is, of which a part is shown: on pages of others it is elsewhere.
  const home = (part) => {
    const source = part.closest("gradio-app")?.getAttribute("src");
    return new URL(source ? source.replace(/\/?$/, "/") : location.pathname, location.href);
  };

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

  const swallow = (event) => {
    event.preventDefault();
    event.stopPropagation();
  };

  // With one line Enter sends, with more it begins the next, and Shift has it the other way round.
  const sends = ({ key, shiftKey, target }) => (
    key === "Enter" && target.matches?.("#prompt textarea") && shiftKey === target.rows > 1
  );

  // Before the fields see it: in some of them Enter has a meaning of its own.
  document.addEventListener("keydown", (event) => {
    const app = around(event.target);
    if (!app) return;
    // Held down, a key presses once, and not what comes in the place of what it pressed.
    if (event.repeat && event.target.closest?.("#generate, #stop")) event.preventDefault();
    const runs = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    if (runs && !event.repeat && press(app.querySelector("#generate"))) {
      swallow(event);
    }
    // What is drawn may have been begun otherwise than by Enter, which Gradio would then let by.
    if (sends(event) && isSeen(app.querySelector("#stop"))) swallow(event);
  }, true);
  document.addEventListener("keydown", (event) => {
    const app = around(event.target);
    if (!app || event.key !== "Escape" || event.defaultPrevented) return;
    const stop = () => press(app.querySelector("#stop"));
    if (stop() || closePicture(app)) return;
    // What was sent just now has no Stop yet; unless something else is done, it is waited for.
    const again = setInterval(() => { if (stop()) clearInterval(again); }, 50);
    const enough = () => clearInterval(again);
    setTimeout(enough, 2000);
    for (const other of ["keydown", "pointerdown"]) {
      document.addEventListener(other, enough, { once: true, capture: true });
    }
  });

  // What follows a press at once, as the system counts double clicks or nearly.
  const follows = (event, before) => event.detail > 1 || event.timeStamp - before < 500;

  // Gradio notes a press a moment late: as soon as there is Stop. Of several till then the first
  // counts.
  let pressed = -Infinity;
  document.addEventListener("click", (event) => {
    if (!around(event.target) || !event.target.closest?.("#generate, #new-seed")) return;
    if (follows(event, pressed)) event.stopPropagation();
    else pressed = event.timeStamp;
  }, true);

  // Stop appears under the pointer that pressed Generate, and the other way round: presses that
  // follow at once are the rest of a double click. Keys are pressed with care.
  let aimed = null; // at one of them, and when it was pressed last
  document.addEventListener("click", (event) => {
    const id = event.target.closest?.("#generate, #stop")?.id;
    if (!id || !around(event.target) || !event.detail) return;
    const rest = aimed && aimed.id !== id && follows(event, aimed.at);
    if (rest) swallow(event);
    aimed = { id: rest ? aimed.id : id, at: event.timeStamp };
  }, true);

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // there is no clipboard on pages that come without encryption
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

  // A picture can be dropped anywhere: beside its place the browser would open it, and leave the page.
  // What is dragged from a page, unlike a file, brings its HTML along.
  const given = ({ target, dataTransfer }) => {
    const types = dataTransfer?.types ?? [];
    const isFile = types.includes("Files") && !types.includes("text/html");
    return isFile ? around(target)?.querySelector("#restore") : null;
  };
  const placeIn = async (restore) => {
    restore.querySelector(".label-wrap:not(.open)")?.click();
    for (let tries = 0; tries < 100; tries++) {
      const place = restore.querySelector("#restore-picture input[type=file]");
      if (place) return place;
      await new Promise((wake) => setTimeout(wake, 50)); // it is only made once it is to be seen
    }
    return null;
  };
  document.addEventListener("dragover", (event) => {
    if (given(event)) event.preventDefault();
  }, true);
  document.addEventListener("drop", async (event) => {
    const restore = given(event);
    if (!restore) return;
    swallow(event);
    const first = new DataTransfer();
    first.items.add(event.dataTransfer.files[0]);
    const place = await placeIn(restore);
    if (!place) return;
    // The place itself is told that nothing is dragged over it any more.
    place.parentElement.dispatchEvent(new DragEvent("drop", { dataTransfer: new DataTransfer() }));
    place.files = first.files;
    place.dispatchEvent(new Event("change", { bubbles: true }));
    restore.scrollIntoView({ block: "nearest" });
  }, true);

  // What cannot be read anyway is refused before it is sent, and in the page's own words.
  const isUnfit = ({ name, size }, place, most) => {
    const kinds = place.accept.split(",").map((kind) => kind.trim());
    if (!kinds.some((kind) => name.toLowerCase().endsWith(kind))) return "unreadable";
    return size > most && "too large";
  };
  document.addEventListener("change", (event) => {
    const place = event.target;
    const app = place.closest?.("#restore-picture") && around(place);
    if (!app || !place.files?.length) return;
    const { most } = JSON.parse(app.querySelector("#header [data-page]").dataset.page);
    const why = isUnfit(place.files[0], place, most);
    if (!why) return;
    swallow(event);
    place.value = "";
    const said = app.querySelector("#restored .prose");
    said.dispatchEvent(new CustomEvent("refused", { bubbles: true, detail: why }));
  }, true);

  // Gradio neither translates everything nor has it pictures for choices; the heading knows both.
  const dress = (app, { names, pictures }) => {
    for (const part of app.querySelectorAll("#style label span, #history [data-named]")) {
      part.dataset.named ||= part.textContent;
      const name = names[part.dataset.named] ?? part.dataset.named;
      if (part.textContent !== name) part.textContent = name;
    }
    for (const part of app.querySelectorAll("#gallery button, .reset-button")) {
      for (const attribute of ["aria-label", "title"]) {
        const said = part.getAttribute(attribute) ?? "";
        const name = names[said.replace(/\d+/g, "#")];
        if (!name) continue; // it is told already
        part.dataset.named = said;
        const numbers = said.match(/\d+/g);
        const own = name.replace(/#/g, () => numbers.shift());
        if (own !== said) part.setAttribute(attribute, own);
      }
    }
    for (const label of app.querySelectorAll("#style label:not([data-pictured])")) {
      const picture = pictures[label.querySelector("input").value];
      if (!picture) continue;
      label.dataset.pictured = "";
      label.style.setProperty("--picture", `url("${new URL(picture, home(label))}")`);
    }
  };

  // When what has the focus disappears, the focus goes to what is there instead.
  let focused = null;
  let owner = null; // of what has the focus
  let picture = 0; // the one that is open, or was
  document.addEventListener("focusin", ({ target }) => {
    focused = target;
    owner = around(target);
  });
  const heir = (app) => {
    if (focused.closest("#generate, #stop")) return app.querySelector("#generate, #stop");
    const open = focused.closest(".preview, #picked");
    return open && app.querySelectorAll("#gallery .thumbnail-lg")[picture];
  };
  const keepFocus = (app) => {
    if (app !== owner) return;
    const opened = [...app.querySelectorAll("#gallery .thumbnail-small")];
    if (opened.length) picture = opened.findIndex((each) => each.matches(".selected"));
    if (!focused.isConnected && document.activeElement === document.body) heir(app)?.focus();
  };

  // Gradio names these otherwise than they read, or what is only decoration, or in English, as it does
  // a slider's two parts, which are told apart anyway; and says captions twice.
  // And the language is that of the heading.
  const mend = (app) => {
    const heading = app.querySelector("#header [data-page]");
    if (!heading) return; // it is not there yet, or this is another program's
    (alone ? root : app).lang = heading.lang;
    const draws = Boolean(app.querySelector("#stop"));
    if (draws) pressed = -Infinity;
    // One drawing at a time: each has the pictures' place.
    for (const more of app.querySelectorAll("#new-seed, #variations")) more.disabled = draws;
    const misnamed = "#gallery :is(.empty, .thumbnail-lg, .media-button), .upload-container, footer";
    for (const part of app.querySelectorAll(misnamed)) part.removeAttribute("aria-label");
    const ofSliders = ":is([aria-label^='number input for '], [aria-label^='range slider for '])";
    for (const part of app.querySelectorAll(ofSliders)) {
      part.ariaLabel = part.ariaLabel.replace(/^.*? for /, "");
    }
    const captions = "#gallery .thumbnail-lg .caption-label";
    for (const caption of app.querySelectorAll(captions)) caption.ariaHidden = "true";
    for (const link of alone ? [] : app.querySelectorAll(".downloads a")) {
      link.href = new URL(link.getAttribute("href"), home(link));
    }
    dress(app, JSON.parse(heading.dataset.page));
    keepFocus(app);
  };
  const mendAll = () => document.querySelectorAll("gradio-app").forEach(mend);
  const changes = { subtree: true, childList: true, attributeFilter: ["aria-label"] };
  new MutationObserver(mendAll).observe(document.body, changes);
  mendAll();
}
