// Back closes the opened picture, and Forward opens it again. Only where the page is alone in its
// window: elsewhere Back belongs to the page around it.
import { alone, forEachApp } from "./app.js";

const MARK = "sdxl-picture"; // the key of the picture's place in the state of its entry
const PAUSE_MS = 100; // Gradio may replace an opened picture by another version of it

forEachApp((app) => {
  if (!alone || window.top !== window) return;
  const isMarked = () => Number.isInteger(history.state?.[MARK]);
  const isOpen = () => Boolean(app.find("#gallery .preview"));
  const place = () => (
    app.all("#gallery .thumbnail-small").findIndex((thumbnail) => thumbnail.matches(".selected"))
  );

  // Whether an entry is being left because its picture was closed. Until this has happened, the state
  // is still the entry's.
  let leaving = false;
  const follow = () => {
    if (leaving) return;
    if (isOpen() === isMarked()) {
      if (!isOpen()) history.scrollRestoration = "auto";
    } else if (isOpen()) {
      // Closing the picture goes back, but may not scroll back: other pictures may be in view by then.
      history.scrollRestoration = "manual";
      history.pushState({ ...history.state, [MARK]: Math.max(0, place()) }, "");
    } else {
      leaving = true;
      history.back();
    }
  };
  let due = null;
  const followSoon = () => {
    due ??= setTimeout(() => {
      due = null;
      follow();
    }, PAUSE_MS);
  };

  addEventListener("popstate", () => {
    const wasLeaving = leaving;
    leaving = false;
    if (!wasLeaving && isOpen() && !isMarked()) {
      app.find("#gallery .preview [data-named='Close']")?.click();
    } else if (!wasLeaving && !isOpen() && isMarked()) {
      app.all("#gallery .thumbnail-lg")[history.state[MARK]]?.click();
    }
    followSoon();
  });
  app.whenOpen(() => app.watch("#gallery", followSoon));
});
