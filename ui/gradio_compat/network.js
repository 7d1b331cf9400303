// Recovery from a lost network. Once it is back, calls that did not get through are made again,
// pictures are fetched again, and a request whose events broke off is followed again. Without this,
// Gradio would reload the page and lose what the visitor typed.
// Gradio runs this once, with `element` and `trigger` of the part of the page it belongs to.
const TRY_EVERY_MS = 2000;
const ANSWER_WITHIN_MS = 5000;
const TIMES_AGAIN = 3; // retries of a picture that did not load
const SILENT_MS = 20_000; // while a request is drawn the server sends something every 5 s

const API = /^(.*\/gradio_api)\/(.+)$/;
const GATEWAY_ALONE = [502, 504]; // a gateway answers, but no server behind it

const own = new URL(element.closest("gradio-app")?.getAttribute("src") ?? "", location).origin;
const send = window.fetch.bind(window);
// The events whose end Gradio has not been told, by id. Each has its session (a page with several
// elements has several), whether a visitor set it off, and the event that it follows. Opening the
// page sets off events, too; an event that resumes a request counts as the one that broke off.
const waitedFor = new Map();
const waitedForIn = (session) => [...waitedFor].filter(([, event]) => event.session === session);

const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));

const say = (away) => {
  const note = element.querySelector("[data-away]");
  note.textContent = away ? note.dataset.away : "";
};

const answers = async (root) => {
  try {
    const { ok } = await send(`${root}/app_id`, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    return ok;
  } catch {
    return false;
  }
};

let returning = null;

// Resolves when the server answers again, and polls it until then.
const back = (root) => returning ??= (async () => {
  say(true);
  do {
    await pause(TRY_EVERY_MS);
  } while (!await answers(root));
  say(false);
  returning = null;
})();

const persist = async (root, call) => {
  for (;;) {
    try {
      const answer = await call();
      if (!GATEWAY_ALONE.includes(answer.status)) return answer;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // thrown by fetch for a broken connection
    }
    await back(root);
  }
};

// Resolves to the answer when all of it has arrived.
const whole = async (...call) => {
  const answer = await send(...call);
  return new Response(await answer.text(), answer);
};

// A call may have got through although no answer came: by its key the server knows a repeat.
const join = async (root, address, init) => {
  const keyed = new URL(address, location);
  keyed.searchParams.set("once", crypto.getRandomValues(new Uint32Array(4)).join("-"));
  const answer = await persist(root, () => whole(keyed, init));
  const { event_id: id } = await answer.clone().json().catch(() => ({}));
  const { session_hash: session, trigger_id: trigger, event_data: data } = JSON.parse(init.body);
  const visitors = data?.visitors ?? Boolean(trigger);
  if (id) waitedFor.set(id, { session, visitors, follows: data?.event ?? id });
  return answer;
};

const unlessSilent = (reading, since) => new Promise((resolve, reject) => {
  const left = since + SILENT_MS - Date.now();
  const timer = setTimeout(reject, left, new TypeError("silent"));
  reading.then(resolve, reject).finally(() => clearTimeout(timer));
});

// Passes on whole messages until the server closes the stream; throws if it never does. Heartbeats
// are no sign of life: the server also sends them to a page that it takes for gone.
const pass = async (reader, on) => {
  let heard = Date.now();
  for (let rest = ""; ;) {
    const { done, value } = await unlessSilent(reader.read(), heard);
    if (done) throw new TypeError("broken off");
    const messages = (rest + value).split("\n\n");
    rest = messages.pop();
    for (const message of messages) {
      const { msg, event_id: id } = JSON.parse(message.slice("data: ".length));
      if (msg === "unexpected_error" && !id) throw new TypeError("the server stops");
      if (msg === "process_completed") waitedFor.delete(id);
      if (msg !== "heartbeat") heard = Date.now();
      if (msg === "close_stream") return;
      on(message);
    }
  }
};

// Returns the last messages for Gradio: these events are done, and nothing has changed.
const endings = (events) => {
  const messages = events.map(([id]) => (
    { msg: "process_completed", event_id: id, success: true, output: { data: [] } }
  ));
  for (const [id] of events) waitedFor.delete(id);
  return [...messages, { msg: "close_stream" }].map((message) => `data: ${JSON.stringify(message)}`);
};

// Names the event to resume: the visitor's newest.
const newest = (events) => {
  const found = events.map(([, event]) => event);
  const { visitors, follows } = found.findLast((event) => event.visitors) ?? found.at(-1);
  return { visitors, event: follows };
};

const follow = async (root, ...call) => {
  const session = new URL(call[0].url ?? call[0], location).searchParams.get("session_hash");
  const ask = () => persist(root, () => send(...call));
  const answer = await ask();
  if (!answer.ok) return answer;
  const start = async (stream) => {
    let reader;
    const on = (message) => stream.enqueue(`${message}\n\n`);
    const listen = ({ body }) => {
      reader = body.pipeThrough(new TextDecoderStream()).getReader();
      return pass(reader, on);
    };
    try {
      await listen(answer);
      // An event that was joined just as the server closed the stream is not in it. Gradio, which
      // has not been told of the end, does not open another stream for it.
      while (waitedForIn(session).length) await listen(await ask());
      endings([]).forEach(on);
    } catch (error) {
      reader.cancel().catch(() => {});
      if (error.name === "AbortError") return stream.close(); // the page itself aborted it
      await back(root);
      const events = waitedForIn(session);
      endings(events).forEach(on);
      // Otherwise no request broke off, and an ended one must not be shown over a new one.
      if (events.length) trigger("select", newest(events));
    }
    stream.close();
  };
  const body = new ReadableStream({ start }).pipeThrough(new TextEncoderStream());
  return new Response(body, answer);
};

// Like the browser's own, it does not throw but returns a promise that rejects: a page that embeds
// this one calls it, too, and not only with addresses.
window.fetch = async (input, init) => {
  const { origin, pathname } = new URL(input?.url ?? input, location);
  const [, path, call] = (origin === own && API.exec(pathname)) || [];
  const root = origin + path;
  if (call === "queue/join") return join(root, input, init);
  if (call === "queue/data") return follow(root, input, init);
  if (call?.startsWith("run/")) return persist(root, () => whole(input, init));
  return send(input, init);
};

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
  const root = address.replace(API, "$1");
  // A failure for want of a connection says nothing about the picture.
  if (await answers(root)) failure.times++;
  else await back(root);
  failure.isMending = false;
  if (image.src === address) image.src = address;
};

const page = element.closest(".gradio-container");
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
