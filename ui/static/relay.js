// Hands values between this page and its server, and keeps some of them in the browser.
//
// The part's value is what the server is told with an event: the name of this `app`, the id of the
// `request` that it followed last, and whether files are `bare`, without settings inside. What the page
// and the server send are properties, named in `props.received`: none is lost behind another.
import { kept as storage } from "./app.js";
import { goneOf } from "./entries.js";

export const begin = (app, { props, trigger, watch }) => {
  const source = app.root?.getAttribute("src") ?? location.pathname;
  const query = [...new URLSearchParams(location.search)];
  const link = String(new URLSearchParams(query.filter(([name]) => props.settings.includes(name))));

  // The tab keeps the values of the fields, the request and the picture to start from: reloads, Back
  // and Forward find them again, but no other tab does. Each link that the tab opened has values of
  // its own. The browser keeps the choice about files for all tabs.
  const place = [...document.querySelectorAll("gradio-app")].indexOf(app.root);
  const addressOf = (name) => (
    name === props.of_browser
      ? ["localStorage", `sdxl-${name}`]
      : ["sessionStorage", `sdxl-${name} ${source}?${link}${place > 0 ? ` ${place}` : ""}`]
  );

  // A link that is opened comes before what was kept; at a reload, Back or Forward it does not.
  const [{ type: navigation }] = performance.getEntriesByType("navigation");
  const isOpenedByLink = navigation === "navigate" && link !== "";
  const kept = {};
  for (const name of props.kept) {
    if (isOpenedByLink && name !== props.of_browser) storage.write(...addressOf(name), null);
    kept[name] = storage.read(...addressOf(name));
  }

  // Told now: a text that is typed while the page opens is kept as a draft, too.
  const isLinked = !kept.draft && link !== "";

  const name = Math.random().toString(36).slice(2);
  const tell = () => {
    props.value = { app: name, bare: kept.bare, request: kept.request };
  };
  const keep = (key, value) => {
    kept[key] = value;
    tell();
    storage.write(...addressOf(key), value);
  };

  const receive = {
    // The page is open as soon as all of its parts are there; a text may have been typed by then.
    opened() {
      app.open();
      if (kept.request) trigger("request_kept", { gone: goneOf(kept.request) });
      if (kept.started) {
        app.send("#start [data-start]", "kept"); // its panel may be mounted later than this
        trigger("picture_given");
      }
      if (isLinked) trigger("linked");
    },
    entry: (news) => app.send("#history [data-list]", "news", news),
  };
  for (const received of props.received) {
    watch(received, () => (
      receive[received] ?? ((value) => keep(received, value)))(props[received]));
  }

  // What a request needs of the page besides its fields, by the names that events ask for.
  const startOf = (id) => {
    const asked = { start: id };
    app.send("#start [data-start]", "asked", asked);
    return asked.answer; // once it is uploaded
  };
  const answers = {
    start: async () => ({ start: await startOf() }),
    // The picture with which the one began that is acted upon.
    began: async () => (
      app.acted?.began ? { start: await startOf(app.acted.start) ?? { gone: true } } : {}
    ),
    // The id of the request that a press becomes.
    press: () => ({ press: [...crypto.getRandomValues(new Uint32Array(4))].join("-") }),
  };
  app.page.dataset.app = name;
  app.page.relay = {
    kept,
    keep,
    // Returns the fields as they were before settings were put into them.
    undo() {
      const { before } = app.store.state;
      app.store.dispatch("undone");
      return before ?? {};
    },
    // Has Gradio mount the panel of pictures, whose parts take a picture.
    mountPicturePanel: () => trigger("picture_given"),
    // Returns what the server is told, with the answers to these questions.
    tell: async (names) => Object.assign(
      {}, props.value, ...await Promise.all(names.map((question) => answers[question]()))),
  };
  tell();
};
