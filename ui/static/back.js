() => {
  // Back closes the opened picture, and Forward opens it again. Only where the page is alone in its
  // window: elsewhere Back belongs to the page around it.
  const app = alone;
  if (!app || window.top !== window) return;

  const MARK = "sdxl-picture"; // the key of the picture's place in the state of its entry
  const isMarked = () => Number.isInteger(history.state?.[MARK]);
  const isOpen = () => Boolean(app.querySelector("#gallery .preview"));
  const place = () => (
    [...app.querySelectorAll("#gallery .thumbnail-small")].findIndex((each) => each.matches(".selected"))
  );

  // Whether an entry is being left because its picture was closed. Until this has happened, the
  // state is still the entry's.
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

  // A moment later, because Gradio may replace an opened picture by another version of it.
  let due = null;
  const followSoon = () => {
    due ??= setTimeout(() => {
      due = null;
      follow();
    }, 100);
  };

  addEventListener("popstate", () => {
    const wasLeaving = leaving;
    leaving = false;
    if (!wasLeaving && isOpen() && !isMarked()) {
      app.querySelector("#gallery .preview [data-named='Close']")?.click();
    } else if (!wasLeaving && !isOpen() && isMarked()) {
      app.querySelectorAll("#gallery .thumbnail-lg")[history.state[MARK]]?.click();
    }
    followSoon();
  });
  new MutationObserver(followSoon).observe(app, { subtree: true, childList: true });
}
