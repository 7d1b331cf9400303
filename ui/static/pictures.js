// The open picture: its panel, the arrows over it, and its place in the window.
import { appOf, forEachApp, reveal, swallow } from "./app.js";
import { pictureAt } from "./bar.js";
import { enter } from "./fullscreen.js";
import { DOUBLE_MS } from "./state.js";
import { swiped } from "./view.js";

const frame = () => new Promise(requestAnimationFrame);

// The panel shows the bar and the texts of the file that is open, and nothing if it has none.
const describe = (app) => {
  const place = app.find("#picked [data-place]");
  if (!place || !app.showBar) return;
  const texts = pictureAt(app, app.find("#gallery .preview .media-button img")?.src);
  const before = place.querySelector("details");
  if (before) app.showsDetails = before.open;
  if (!texts) {
    delete place.dataset.key;
    place.replaceChildren();
    app.showBar(null);
  } else if (place.dataset.key !== texts.dataset.key) {
    place.replaceChildren(...texts.cloneNode(true).childNodes);
    // They stay unfolded or folded from one picture to the next.
    place.querySelector("details").open = Boolean(app.showsDetails);
    Object.assign(place.dataset, texts.dataset);
    app.showBar(texts);
    app.find("#stage").style.setProperty("--ratio", texts.dataset.ratio);
  }
};

// A picture that was drawn into a larger one has the shape of that one. All pictures of a request have one.
document.addEventListener("load", ({ target }) => {
  const name = target.matches?.("#gallery .preview .media-button img") ? "--ratio" : "--shape";
  const isShown = target.matches?.("#gallery :is(.preview .media-button, .thumbnail-lg) img, #previews img");
  const ratio = target.naturalWidth / target.naturalHeight;
  if (isShown && ratio) appOf(target)?.find("#stage").style.setProperty(name, ratio.toFixed(3));
}, true);

let walked = null; // the arrow that was pressed last, until the next press of anything
const walk = (app, steps) => {
  const small = app.all("#gallery .thumbnail-small");
  const index = small.findIndex((thumbnail) => thumbnail.matches(".selected"));
  small[(index + steps + small.length) % small.length]?.click();
};
document.addEventListener("click", (event) => {
  const arrow = event.target.closest?.("#walk [data-walk]");
  const app = arrow && appOf(arrow);
  if (!app) return;
  walked = arrow;
  walk(app, Number(arrow.dataset.walk));
});
// The gallery itself knows the keys only while one of its thumbnails has the focus.
document.addEventListener("keydown", ({ key, target, altKey, ctrlKey, metaKey }) => {
  const steps = { ArrowLeft: -1, ArrowRight: 1 }[key];
  const app = appOf(target);
  if (!steps || altKey || ctrlKey || metaKey || !app) return;
  if (target.matches?.("input, [role=menuitem]")) return;
  if (target.closest?.("#picked, #walk")) walk(app, steps);
});
// The gallery moves the focus to the thumbnail, where a second press would do nothing.
document.addEventListener("focusin", ({ target }) => {
  if (target.matches?.("#gallery .thumbnail-small")) walked?.focus();
});
for (const press of ["keydown", "pointerdown"]) {
  document.addEventListener(press, () => { walked = null; }, true);
}

// A swipe over the open picture leads to the next one, too. On the full screen `fullscreen.js` knows them.
let swipe = null; // where the finger was put down
document.addEventListener("pointerdown", ({ target, pointerType, isPrimary, x, y }) => {
  const isFinger = pointerType !== "mouse" && isPrimary;
  const picture = target.closest?.(".media-button")?.closest("#stage:not([data-full])");
  swipe = isFinger && picture ? { x, y } : null;
});
document.addEventListener("pointerup", ({ target, x, y }) => {
  const app = swipe && appOf(target);
  const steps = app ? swiped(x - swipe.x, y - swipe.y) : 0;
  swipe = null;
  if (steps) walk(app, steps);
});

// The picture opens under the pointer: what follows at once is the rest of a double click. Other clicks
// into the open picture enlarge it, where the gallery would show the next one.
let opening = null; // the click that opened a picture, until one elsewhere or later
document.addEventListener("click", (event) => {
  const { target, timeStamp, detail, clientX, clientY } = event;
  const app = appOf(target);
  if (!detail || !app || event.defaultPrevented) return; // a press by key, or on the full screen
  const follows = opening && (detail > 1 || timeStamp - opening.timeStamp < DOUBLE_MS)
    && Math.hypot(clientX - opening.clientX, clientY - opening.clientY) < 10;
  const isPicture = target.closest("#gallery .media-button");
  if (isPicture || (follows && target.closest("#gallery, #walk, #picked"))) swallow(event);
  if (follows) return;
  if (isPicture) enter(app);
  opening = target.closest("#gallery .thumbnail-lg") && event;
}, true);

// Drawing brings the place of the pictures into view: it is far above the panel on a phone, and may be
// out of sight for Generate, too. At once, as some visitors want no motion.
// `app.asking` is the name of what was pressed, until drawing begins.
document.addEventListener("click", ({ target }) => {
  const app = target.closest?.("#generate") && appOf(target);
  if (app) app.asking = "generate";
});
document.addEventListener("keydown", ({ key, target }) => {
  const app = key === "Enter" && target.matches?.("#prompt textarea") && appOf(target);
  if (app) app.asking = "generate";
});
const isInSight = (part) => {
  const { top, bottom, height } = part.getBoundingClientRect();
  return Math.min(bottom, innerHeight) - Math.max(top, 0) > Math.min(height, innerHeight) / 2;
};
const bringOpenedIntoView = async (app) => {
  const preview = app.find("#gallery .preview");
  const opened = preview && app.preview !== preview;
  app.preview = preview;
  if (!opened) return;
  await frame(); // the gallery first scrolls to its thumbnails
  reveal(preview);
};
const bringDrawingIntoView = (app) => {
  const stage = app.find("#stage");
  if (app.asking && (app.asking !== "generate" || !isInSight(stage))) reveal(stage);
  app.asking = "";
};

// The gallery gives the focus to a thumbnail below an opened picture, and browsers scroll to what has it.
function focusInPlace() {
  HTMLElement.prototype.focus.call(this, { preventScroll: true });
}

forEachApp((app) => app.whenOpen(() => {
  const update = () => {
    for (const thumbnail of app.all("#gallery .thumbnail-small")) thumbnail.focus = focusInPlace;
    describe(app);
    bringOpenedIntoView(app);
  };
  app.watch("#gallery", update, { subtree: true, attributeFilter: ["src"] });
  app.watch("#picture-texts", update);
  app.watch("#pictures", update, {}); // the panel is mounted with the first pictures
  app.store.subscribe(({ running }, before) => {
    if (running && !before.running) bringDrawingIntoView(app);
  });
}));
