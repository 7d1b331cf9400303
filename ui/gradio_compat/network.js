// The request that the page follows, and what was lost with the network: once it is back, the request
// is followed again, calls that did not get through are made again, and pictures are fetched again.
import { forEachApp, pause } from "../static/app.js";

const TRY_EVERY_MS = 2000;
const ANSWER_WITHIN_MS = 5000;
const TIMES_AGAIN = 3; // retries of a picture that did not load
const SILENT_MS = 20_000; // while a request is drawn the server sends something every 5 s
const SIGNED_OUT = 401;
// Answers that say nothing of a call: of a gateway without a server behind it, and to a visitor who is
// not signed in any more, in this tab or in another one.
const NO_ANSWERS = [502, 504, SIGNED_OUT];
const CALLS = ["gradio_api/run/", "gradio_api/upload?"];

const apps = new Set();
const returning = new Map(); // promises that servers answer again, by their addresses

// Returns the status with which a server answers, 0 if it does not.
const ask = async (home) => {
  try {
    const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
    return (await fetch(new URL("gradio_api/app_id", home), { signal })).status;
  } catch {
    return 0;
  }
};

// Resolves when the server answers again, and polls it until then; `status` is its last answer.
const back = (home, status = 0) => {
  const { href } = home;
  const tell = (...what) => {
    for (const app of apps) if (app.home.href === href) app.store.dispatch(...what);
  };
  const poll = async () => {
    let last = status;
    do {
      tell("lost", { isSignedOut: last === SIGNED_OUT });
      await pause(TRY_EVERY_MS);
      last = await ask(home);
    } while (last !== 200);
    returning.delete(href);
    tell("back");
  };
  if (!returning.has(href)) returning.set(href, poll());
  return returning.get(href);
};

// Makes a call, and makes it again once the server is back if it did not get through.
export const fetchOnceBack = async (app, call) => {
  for (;;) {
    let status = 0;
    try {
      const answer = await call();
      status = answer.status;
      if (!NO_ANSWERS.includes(status)) return answer;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // thrown by fetch for a broken connection
    }
    await back(app.home, status);
  }
};

// --- the request that is drawn ---

const follow = (app, { trigger }) => {
  const { store } = app;
  let stream = null;
  let silence;

  const leave = () => {
    clearTimeout(silence);
    stream?.close();
    stream = null;
  };
  const listen = (id) => {
    leave();
    const current = stream = new EventSource(new URL(`following/${id}`, app.home));
    const lost = async () => {
      clearTimeout(silence);
      current.close();
      await back(app.home);
      if (stream === current) listen(id);
    };
    const hear = () => {
      clearTimeout(silence);
      silence = setTimeout(lost, SILENT_MS);
    };
    stream.addEventListener("error", lost);
    stream.addEventListener("message", ({ data }) => {
      hear();
      const { line, previews, ended } = JSON.parse(data);
      if (line) store.dispatch("told", { line });
      if (previews) app.find("#previews").innerHTML = previews;
      if (!ended) return;
      leave();
      trigger("select", { id, broken: store.state.broken });
      store.dispatch("ended");
    });
    hear();
  };

  store.subscribe(({ followed, running }, before) => {
    if (followed && followed !== before.followed) listen(followed);
    if (!running && before.running) app.find("#previews").replaceChildren();
  });
};

// --- calls ---

// Gradio shows nothing of a call that was refused before it got to a function of the page.
const refuse = (app, content) => {
  if (app.store.state.running) return;
  try {
    const { detail } = JSON.parse(content);
    if (typeof detail === "string") app.store.dispatch("told", { line: { kind: "error", text: detail } });
  } catch {
    // A proxy's answer, which is not for visitors.
  }
};

// Gradio's own client calls this in place of `fetch` (`delivery.py`).
const CLIENTS_FETCH = Symbol.for("sdxl-fetch");
const before = window[CLIENTS_FETCH] ?? ((...call) => fetch(...call));
window[CLIENTS_FETCH] = async (input, init) => {
  const address = String(input.url ?? input);
  const isCall = ({ home }) => CALLS.some((path) => address.startsWith(new URL(path, home)));
  const app = [...apps].find(isCall);
  if (!app) return before(input, init);
  let content;
  const answer = await fetchOnceBack(app, async () => {
    const whole = await before(input, init);
    content = await whole.text(); // now, because it may break off in the middle
    return whole;
  });
  if (!answer.ok) refuse(app, content);
  return new Response(content, answer);
};

// --- pictures ---

// The address of each image that failed, how often it was fetched again, and whether that is under
// way. One time is too few: the browser may answer it from another image's load that is about to
// fail. The limit is for pictures that are gone for good.
const failures = new WeakMap();
const hasFailed = ({ src, complete, naturalWidth }) => src && complete && !naturalWidth;

const mend = async (image, home) => {
  image.dataset.missing = ""; // page.css shows a plain tile in place of a broken image
  const address = image.src;
  const earlier = failures.get(image);
  const failure = earlier?.address === address ? earlier : { address, times: 0, isMending: false };
  if (failure.isMending || failure.times === TIMES_AGAIN) return;
  failures.set(image, failure);
  failure.isMending = true;
  await pause(failure.times * TRY_EVERY_MS);
  // A failure for want of a connection says nothing about the picture.
  if (await ask(home) === 200) failure.times++;
  else await back(home);
  failure.isMending = false;
  if (image.src === address) image.src = address;
};

const mendPictures = ({ page, home }) => {
  page.addEventListener("error", ({ target }) => {
    if (target.closest?.("#gallery") && target.src) mend(target, home);
  }, true);
  page.addEventListener("load", ({ target }) => target.removeAttribute?.("data-missing"), true);
  // Some failures are not heard of: while Gradio builds the gallery, or shows the picture elsewhere.
  const mending = setInterval(() => {
    if (!page.isConnected) return clearInterval(mending);
    for (const image of page.querySelectorAll("#gallery img")) {
      if (hasFailed(image)) mend(image, home);
    }
  }, TRY_EVERY_MS);
};

forEachApp((app) => apps.add(app));

export const begin = (app, part) => {
  follow(app, part);
  mendPictures(app);
};
