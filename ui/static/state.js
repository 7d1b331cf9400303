// The state of one page, and the one function that makes the next state of it. Nothing here knows of
// a document.
export const DOUBLE_MS = 500; // a press that follows another one within this time belongs to it
export const BEGINS_MS = 2000; // time in which the strip shows a request after a prompt was sent

const NEVER = -Infinity;

export const initial = {
  running: false, // whether the strip shows a request under way
  followed: "", // the id of the request that is followed
  broken: false, // whether the page lost sight of that request
  away: false, // whether the network is away
  next: "", // the prompt that waits for the end of the request
  sentAt: NEVER, // when such a prompt was sent last, until the strip shows its request
  entered: { prompt: null, at: NEVER }, // the last Enter in the prompt
  pressedAt: NEVER, // when a button that draws was pressed, until the strip shows its request
  aimed: { id: "", at: NEVER }, // the last click on Generate or Stop
  isIgnored: false, // whether the last Enter or click has no effect
  panel: "", // the name of the open panel
  hasStart: false, // whether there is a picture to start from
};

// Whether a request is under way, or about to be.
export const isBusy = ({ running, sentAt }, at) => running || at - sentAt < BEGINS_MS;

// Whether a click belongs to a double click, by the system's count or by its time.
export const isDouble = ({ at, detail = 0 }, before) => detail > 1 || at - before < DOUBLE_MS;

const actions = {
  // The strip shows something else; it names a request that is to be followed.
  strip(state, { html }) {
    const running = html.includes('class="running"');
    const [, id] = /data-request="([^"]+)"/.exec(html) ?? [];
    const begins = id && id !== state.followed ? { followed: id, broken: false } : {};
    const shown = running ? { pressedAt: NEVER, sentAt: NEVER } : {};
    return { ...state, running, ...begins, ...shown };
  },
  lost: (state) => ({ ...state, away: true, broken: true }),
  back: (state) => ({ ...state, away: false }),
  ended: (state) => ({ ...state, followed: "" }),
  // Enter in the prompt waits for the end of the request; a second press changes nothing.
  entered(state, { prompt, repeat, at }) {
    const { entered, next } = state;
    const isAgain = repeat || (prompt === entered.prompt && at - entered.at < DOUBLE_MS);
    const isIgnored = next !== "" || isBusy(state, at);
    const waiting = isIgnored && !isAgain ? prompt.trim() : next;
    return { ...state, entered: { prompt, at }, isIgnored, next: waiting };
  },
  sent: (state, { at }) => ({ ...state, next: "", sentAt: at }),
  stopped: (state) => ({ ...state, next: "" }),
  // Gradio registers a press a moment late, when Stop appears. Until then only the first counts.
  pressed(state, press) {
    const isIgnored = isDouble(press, state.pressedAt);
    return { ...state, isIgnored, pressedAt: isIgnored ? state.pressedAt : press.at };
  },
  // Stop appears under the pointer that pressed Generate, and vice versa: a click that follows at once
  // is the rest of a double click.
  aimed(state, click) {
    const { aimed } = state;
    const isIgnored = aimed.id !== "" && aimed.id !== click.id && isDouble(click, aimed.at);
    return { ...state, isIgnored, aimed: { id: isIgnored ? aimed.id : click.id, at: click.at } };
  },
  panel: (state, { name }) => ({ ...state, panel: name }),
  start: (state, { hasStart }) => ({ ...state, hasStart }),
};

export const reduce = (state, action) => actions[action.type](state, action);

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
