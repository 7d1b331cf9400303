// The state of one page, the one function that makes the next state of it, and the line that says it.
// Nothing here knows of a document.
export const DOUBLE_MS = 500; // a press that follows another one within this time belongs to it
export const BEGINS_MS = 2000; // time in which the line shows a request after a prompt was sent

const NEVER = -Infinity;
const NOTHING = { kind: "", text: "" };

export const initial = {
  line: NOTHING, // what the server told last: its `kind` says how long it is true, see `told`
  running: false, // whether a request is under way
  request: "", // its id, or that of the last one
  aside: "", // what was told about something else meanwhile
  followed: "", // the id of the request whose progress the page listens to
  broken: false, // whether the page lost sight of that request
  away: false, // whether the network is away
  isSignedOut: false, // or rather the visitor is not signed in any more
  next: "", // the prompt that waits for the end of the request
  sentAt: NEVER, // when such a prompt was sent last, until its request is under way
  entered: { prompt: null, at: NEVER }, // the last Enter in the prompt
  pressedAt: NEVER, // when a button that draws was pressed, until its request is under way
  aimed: { id: "", at: NEVER }, // the last click on Generate or Stop
  isIgnored: false, // whether the last Enter or click has no effect
  hasStart: false, // whether there is a picture to start from
  editing: false, // whether the stage shows that picture and its tools
  live: false, // whether Live is on
  isLive: false, // whether a live picture is shown
  before: null, // the fields before settings were put into them, for Undo
};

// Whether a request is under way, or about to be.
export const isBusy = ({ running, sentAt }, at) => running || at - sentAt < BEGINS_MS;

// Whether a click belongs to a double click, by the system's count or by its time.
export const isDouble = ({ at, detail = 0 }, before) => detail > 1 || at - before < DOUBLE_MS;

const begun = (state, line) => ({
  ...state,
  line,
  running: true,
  editing: state.editing && state.running, // the previews take the place of the picture to start from
  before: null,
  pressedAt: NEVER,
  sentAt: NEVER,
  ...(line.request && line.request !== state.followed
    ? { request: line.request, followed: line.request, broken: false, aside: "" }
    : {}),
});

const corrected = (state) => (state.line.field ? { ...state, line: NOTHING } : state);

const actions = {
  // The server tells of a request under way, of its end, or of anything else.
  told(state, { line }) {
    if (line.kind === "running") return begun(state, line);
    const isOfAnother = state.running && line.ends !== state.request;
    if (isOfAnother) return { ...state, aside: line.text };
    return { ...state, line, running: false, aside: "" };
  },
  // A refusal that names a field holds until the field changes, or the next press.
  corrected,
  // Settings are about to be put into the fields.
  taking: (state, { fields }) => ({ ...state, before: fields }),
  undone: (state) => ({ ...state, before: null, line: state.running ? state.line : NOTHING }),
  // Some of the pictures in view are there no more: what was told of them is not true any more.
  removed: (state) => ({ ...state, line: state.running ? state.line : NOTHING }),
  lost: (state, { isSignedOut = false }) => ({ ...state, away: true, isSignedOut, broken: true }),
  back: (state) => ({ ...state, away: false }),
  ended: (state) => ({ ...state, followed: "" }),
  // Enter in the prompt waits for the end of the request; a second press changes nothing.
  entered(state, { prompt, repeat, at }) {
    const { entered, next } = state;
    const isAgain = repeat || (prompt === entered.prompt && at - entered.at < DOUBLE_MS);
    const isIgnored = next !== "" || isBusy(state, at);
    const waiting = isIgnored && !isAgain ? prompt.trim() : next;
    const editing = isIgnored && state.editing;
    return { ...corrected(state), entered: { prompt, at }, isIgnored, editing, next: waiting };
  },
  sent: (state, { at }) => ({ ...state, next: "", sentAt: at }),
  stopped: (state) => ({ ...state, next: "" }),
  // Gradio registers a press a moment late, when Stop appears. Until then only the first counts.
  pressed(state, press) {
    const isIgnored = isDouble(press, state.pressedAt);
    const editing = isIgnored && state.editing; // the page moves at once, and not when drawing begins
    return { ...corrected(state), isIgnored, editing, pressedAt: isIgnored ? state.pressedAt : press.at };
  },
  // Stop appears under the pointer that pressed Generate, and vice versa: a click that follows at once
  // is the rest of a double click.
  aimed(state, click) {
    const { aimed } = state;
    const isIgnored = aimed.id !== "" && aimed.id !== click.id && isDouble(click, aimed.at);
    return { ...state, isIgnored, aimed: { id: isIgnored ? aimed.id : click.id, at: click.at } };
  },
  // A new picture to start from is shown at once; a change of it shows and hides nothing. What was told
  // of earlier pictures is not about it.
  start: (state, { hasStart, isNew = false }) => ({
    ...state,
    hasStart,
    editing: hasStart && (isNew || state.editing),
    line: hasStart === state.hasStart || state.running ? state.line : NOTHING,
  }),
  edit: (state, { editing }) => ({ ...state, editing: editing && state.hasStart }),
  live: (state, { isOn }) => ({ ...state, live: isOn }),
  lives: (state, { isShown }) => ({ ...state, isLive: isShown }),
};

export const reduce = (state, action) => actions[action.type](state, action);

// The one line that says what the state is: its kind, its text, a warning, and what may be done. `texts`
// are those that the server does not tell.
export const lineOf = (state, texts) => {
  const { line, running, away, isSignedOut, hasStart, editing, live, isLive, before } = state;
  if (away && isSignedOut) return { kind: "note", text: texts.signed_out, action: "sign_in" };
  if (away) return { kind: "note", text: texts.away };
  if (running || line.kind === "error") return line;
  if (isLive) return { kind: "note", text: texts.live, action: "keep" };
  if (line.kind === "taken") return { ...line, action: before ? "undo" : "" };
  if (hasStart && (editing || line.kind === "")) {
    return { kind: "note", text: live ? `${texts.started} ${texts.paused}` : texts.started };
  }
  if (line.kind === "stopped") return { ...line, action: "finish" };
  return line;
};

// Keeps a state, and tells of every change of it.
export class Store {
  #state = initial;
  #listeners = [];

  get state() {
    return this.#state;
  }

  // Calls `listener` with the state and the one before it.
  subscribe(listener) {
    this.#listeners.push(listener);
  }

  // Returns the new state.
  dispatch(type, details = {}) {
    const before = this.#state;
    this.#state = reduce(before, { ...details, type });
    for (const listener of this.#listeners) listener(this.#state, before);
    return this.#state;
  }
}
