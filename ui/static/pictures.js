() => {
  // The open picture: its panel, the arrows over it, and its place in the window.
  const frame = () => new Promise(requestAnimationFrame);

  // The panel shows the texts of the file that is open, and nothing if it has none.
  const describe = (app) => {
    const place = app.querySelector("#picked [data-place]");
    if (!place) return;
    const address = decodeURI(app.querySelector("#gallery .preview .media-button img")?.src ?? "");
    const before = place.querySelector("details");
    const texts = [...app.querySelectorAll("#picture-texts article")].find(
      ({ dataset }) => address.endsWith(`/${dataset.key}`));
    if (before) app.dataset.details = before.open ? "open" : "";
    if (!texts) {
      delete place.dataset.key;
      place.replaceChildren();
    } else if (place.dataset.key !== texts.dataset.key) {
      place.replaceChildren(...texts.cloneNode(true).childNodes);
      // They stay unfolded or folded from one picture to the next.
      place.querySelector("details").open = app.dataset.details === "open";
      Object.assign(place.dataset, texts.dataset);
      app.querySelector("#stage").style.setProperty("--ratio", texts.dataset.ratio);
    }
  };

  // A picture that was drawn into a larger one has the shape of that one.
  document.addEventListener("load", ({ target }) => {
    const app = target.matches?.("#gallery .preview .media-button img") && around(target);
    const ratio = target.naturalWidth / target.naturalHeight;
    if (app && ratio) app.querySelector("#stage").style.setProperty("--ratio", ratio.toFixed(3));
  }, true);

  const small = (app) => [...app.querySelectorAll("#gallery .thumbnail-small")];
  let walked = null; // the arrow that was pressed last, until the next press of anything
  const walk = (app, steps) => {
    const all = small(app);
    const index = all.findIndex((each) => each.matches(".selected"));
    all[(index + steps + all.length) % all.length]?.click();
  };
  document.addEventListener("click", (event) => {
    const arrow = event.target.closest?.("#walk [data-walk]");
    const app = arrow && around(arrow);
    if (!app) return;
    walked = arrow;
    walk(app, Number(arrow.dataset.walk));
  });
  // The gallery itself knows the keys only while one of its thumbnails has the focus.
  document.addEventListener("keydown", ({ key, target, altKey, ctrlKey, metaKey }) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (!steps || altKey || ctrlKey || metaKey || !around(target)) return;
    if (target.matches?.("input")) return;
    if (target.closest?.("#picked, #walk")) walk(around(target), steps);
  });
  // The gallery moves the focus to the thumbnail, where a second press would do nothing.
  document.addEventListener("focusin", ({ target }) => {
    if (target.matches?.("#gallery .thumbnail-small")) walked?.focus();
  });
  for (const press of ["keydown", "pointerdown"]) {
    document.addEventListener(press, () => { walked = null; }, true);
  }

  // The picture opens under the pointer: what follows at once is the rest of a double click.
  let opening = null; // the click that opened a picture, until one elsewhere or later
  document.addEventListener("click", (event) => {
    const { target, timeStamp, detail, clientX, clientY } = event;
    if (!detail || !around(target)) return; // a press by key
    const follows = opening && (detail > 1 || timeStamp - opening.timeStamp < 500)
      && Math.hypot(clientX - opening.clientX, clientY - opening.clientY) < 10;
    if (follows && target.closest("#gallery, #walk, #picked")) {
      event.preventDefault();
      event.stopPropagation();
    } else {
      opening = target.closest("#gallery .thumbnail-lg") && event;
    }
  }, true);

  // Drawing brings the place of the pictures into view: it is far above the panel on a phone, and
  // may be out of sight for Generate, too. At once, as some visitors want no motion.
  const asking = new WeakMap(); // the button of apps that was pressed, until drawing begins
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("#generate, #new-seed, #variations, #larger, #finish");
    if (button && around(button)) asking.set(around(button), button.id);
  });
  document.addEventListener("keydown", ({ key, target }) => {
    const app = key === "Enter" && target.matches?.("#prompt textarea") && around(target);
    if (app) asking.set(app, "generate");
  });
  const isInSight = (part) => {
    const { top, bottom, height } = part.getBoundingClientRect();
    return Math.min(bottom, innerHeight) - Math.max(top, 0) > Math.min(height, innerHeight) / 2;
  };

  const reveal = (part) => {
    part.scrollIntoView({ block: "nearest" });
    if (part.getBoundingClientRect().top < 0) part.scrollIntoView(); // not all of it fits
  };

  const shown = new WeakMap(); // the open picture's element of each app
  const bringIntoView = async (app) => {
    const preview = app.querySelector("#gallery .preview");
    const opened = preview && shown.get(app) !== preview;
    shown.set(app, preview);
    if (opened) {
      await frame(); // the gallery first scrolls to its thumbnails
      reveal(preview);
    }
    if (asking.has(app) && app.querySelector("#status .running")) {
      const stage = app.querySelector("#stage");
      if (asking.get(app) !== "generate" || !isInSight(stage)) reveal(stage);
      asking.delete(app);
    }
  };

  const update = (app) => {
    describe(app);
    bringIntoView(app);
  };
  const updateAll = () => document.querySelectorAll("gradio-app").forEach(update);
  const changes = { subtree: true, childList: true, attributeFilter: ["src"] };
  new MutationObserver(updateAll).observe(document.body, changes);
  updateAll();
}
