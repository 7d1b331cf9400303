// The request that the page follows, and what was lost with the network: once it is back, the request
// is followed again, calls that did not get through are made again, and pictures are fetched again.
// Gradio runs this once, with `element`, `props`, `trigger` and `watch` of the strip.
const TRY_EVERY_MS = 2000;
const ANSWER_WITHIN_MS = 5000;
const TIMES_AGAIN = 3; // retries of a picture that did not load
const SILENT_MS = 20_000; // while a request is drawn the server sends something every 5 s

const GATEWAY_ALONE = [502, 504]; // a gateway answers, but no server behind it

const page = element.closest(".gradio-container"); // may be embedded in another page
const source = element.closest("gradio-app")?.getAttribute("src");
const home = new URL(source ? source.replace(/\/?$/, "/") : location.pathname, location.href);
const api = new URL("gradio_api", home).href;

const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));

const say = (away) => {
  const note = page.querySelector("#network [data-away]");
  note.textContent = away ? note.dataset.away : "";
};

const answers = async () => {
  try {
    const { ok } = await fetch(`${api}/app_id`, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    return ok;
  } catch {
    return false;
  }
};

let returning = null;

// Resolves when the server answers again, and polls it until then.
const back = () => returning ??= (async () => {
  say(true);
  do {
    await pause(TRY_EVERY_MS);
  } while (!await answers());
  say(false);
  returning = null;
})();

// --- the request that is drawn ---

const previews = page.querySelector("#previews");
let followed = null; // the request's id
let stream = null;
let silence;

const unfollow = () => {
  clearTimeout(silence);
  stream?.close();
  followed = stream = null;
};

const follow = (id, broken = false) => {
  unfollow();
  followed = id;
  const current = stream = new EventSource(new URL(`following/${id}`, home));
  const lost = async () => {
    clearTimeout(silence);
    current.close();
    await back();
    if (stream === current) follow(id, true);
  };
  const listen = () => {
    clearTimeout(silence);
    silence = setTimeout(lost, SILENT_MS);
  };
  stream.addEventListener("error", lost);
  stream.addEventListener("message", ({ data }) => {
    listen();
    const message = JSON.parse(data);
    if (message.strip) props.value = message.strip;
    if (message.previews) previews.innerHTML = message.previews;
    if (!message.ended) return;
    unfollow();
    trigger("select", { id, broken });
  });
  listen();
};

const update = () => {
  const strip = props.value ?? "";
  const [, id] = /data-request="([^"]+)"/.exec(strip) ?? [];
  if (id && id !== followed) follow(id);
  if (!strip.includes('class="running"')) previews.replaceChildren();
};
watch("value", update);
update();

// --- calls ---

// Gradio's own client calls this in place of `fetch` (`delivery.py`).
const CLIENTS_FETCH = Symbol.for("sdxl-fetch");
const before = window[CLIENTS_FETCH] ?? window.fetch.bind(window);
const persist = async (...call) => {
  for (;;) {
    try {
      const answer = await before(...call);
      // Read now, because it may break off in the middle.
      if (!GATEWAY_ALONE.includes(answer.status)) return new Response(await answer.text(), answer);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // thrown by fetch for a broken connection
    }
    await back();
  }
};
window[CLIENTS_FETCH] = (input, init) => (
  String(input.url ?? input).startsWith(`${api}/run/`) ? persist(input, init) : before(input, init)
);

// --- pictures ---

// The address of each image that failed, how often it was fetched again, and whether that is under
// way. One time is too few: the browser may answer it from another image's load that is about to
// fail. The limit is for pictures that are gone for good.
const failures = new WeakMap();
const hasFailed = ({ src, complete, naturalWidth }) => src && complete && !naturalWidth;

const mend = async (image) => {
  image.dataset.missing = ""; // page.css shows a plain tile in place of a broken image
  const address = image.src;
  const before = failures.get(image);
  const failure = before?.address === address ? before : { address, times: 0, isMending: false };
  if (failure.isMending || failure.times === TIMES_AGAIN) return;
  failures.set(image, failure);
  failure.isMending = true;
  await pause(failure.times * TRY_EVERY_MS);
  // A failure for want of a connection says nothing about the picture.
  if (await answers()) failure.times++;
  else await back();
  failure.isMending = false;
  if (image.src === address) image.src = address;
};

page.addEventListener("error", ({ target }) => {
  if (target.closest?.("#gallery") && target.src) mend(target);
}, true);
page.addEventListener("load", ({ target }) => target.removeAttribute?.("data-missing"), true);

// Some failures are not heard of: while Gradio builds the gallery, or shows the picture elsewhere.
const mending = setInterval(() => {
  if (!element.isConnected) return clearInterval(mending);
  const images = page.querySelectorAll("#gallery img");
  for (const image of images) if (hasFailed(image)) mend(image);
}, TRY_EVERY_MS);
