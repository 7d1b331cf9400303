// Begins the page's scripts. Each part of the page that has a script of its own finds it here by name:
// this module is evaluated before Gradio mounts any part.
import "./back.js";
import * as bar from "./bar.js";
import "./drop.js";
import "./fullscreen.js";
import "./live.js";
import "./page.js";
import "./pictures.js";
import "../gradio_compat/repairs.js";
import * as network from "../gradio_compat/network.js";
import { enter } from "./app.js";
import * as history from "./history.js";
import * as looks from "./looks.js";
import { field, restored, start } from "./parts.js";
import { reading } from "./prompt.js";
import * as relay from "./relay.js";
import * as status from "./status.js";

const parts = {
  bar: bar.begin,
  field,
  history: history.begin,
  looks: looks.begin,
  reading,
  relay: relay.begin,
  restored,
  start,
  status: (app, part) => {
    status.begin(app, part);
    network.begin(app, part);
  },
};

const [version] = import.meta.url.split("/").slice(-3);
window[Symbol.for(`sdxl ${version}`)] = (name, part) => parts[name](enter(part.element, part.home), part);
