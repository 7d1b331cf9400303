// The state of a page and its changes.
import assert from "node:assert/strict";
import { test } from "node:test";

import { BEGINS_MS, DOUBLE_MS, Store, initial, isBusy, lineOf, reduce } from "../../ui/static/state.js";

const after = (...actions) => actions.reduce(
  (state, [type, details]) => reduce(state, { type, ...details }), initial);
const TEXTS = {
  away: "Connection lost.",
  signed_out: "Signed out.",
  started: "Starting from it.",
  paused: "Live waits.",
  live: "Rough.",
};
const RUNNING = ["told", { line: { kind: "running", text: "Step 1 of 2" } }];
const named = (id) => ["told", { line: { kind: "running", text: "Starting…", request: id } }];
const ended = (id) => ["told", { line: { kind: "drawn", text: "4 pictures", ends: id } }];

test("the request that a line names is followed", () => {
  const state = after(named("a"));
  assert.equal(state.followed, "a");
  assert.ok(state.running);
  assert.ok(!state.broken);
});

test("progress of a request names none, and changes nothing else", () => {
  const state = after(named("a"), RUNNING);
  assert.equal(state.followed, "a");
  assert.ok(state.running);
});

test("a request that was lost out of sight stays broken until another one begins", () => {
  const lost = [named("a"), ["lost"], ["back"]];
  assert.ok(after(...lost).broken);
  assert.ok(!after(...lost).away);
  assert.ok(!after(...lost, named("b")).broken);
});

test("the same request is followed again after its end", () => {
  const state = after(named("a"), ["ended"], ended("a"));
  assert.equal(state.followed, "");
  assert.ok(!state.running);
  assert.equal(after(named("a"), ["ended"], ended("a"), named("a")).followed, "a");
});

test("a prompt is sent at once if nothing is drawn", () => {
  const state = after(["entered", { prompt: "a star", repeat: false, at: 0 }]);
  assert.ok(!state.isIgnored);
  assert.equal(state.next, "");
});

test("a prompt waits while something is drawn, and the newest one counts", () => {
  const running = RUNNING;
  const first = ["entered", { prompt: " a star ", repeat: false, at: 0 }];
  const second = ["entered", { prompt: "a moon", repeat: false, at: 1 }];
  assert.ok(after(running, first).isIgnored);
  assert.equal(after(running, first).next, "a star");
  assert.equal(after(running, first, second).next, "a moon");
  assert.equal(after(running, first, ["stopped"]).next, "");
});

test("the rest of a double press does not wait", () => {
  const first = ["entered", { prompt: "a star", repeat: false, at: 0 }];
  const running = RUNNING;
  const rest = (at, repeat = false) => after(first, running, ["entered", { prompt: "a star", repeat, at }]);
  assert.equal(rest(DOUBLE_MS - 1).next, "");
  assert.ok(rest(DOUBLE_MS - 1).isIgnored);
  assert.equal(rest(DOUBLE_MS).next, "a star");
  assert.equal(rest(DOUBLE_MS, true).next, "");
});

test("a prompt that was sent is busy until it is shown, or for a while", () => {
  const state = after(["sent", { at: 100 }]);
  assert.ok(isBusy(state, 100 + BEGINS_MS - 1));
  assert.ok(!isBusy(state, 100 + BEGINS_MS));
  const shown = after(["sent", { at: 100 }], named("a"), ended("a"));
  assert.ok(!isBusy(shown, 101));
});

test("only the first press counts until its request is under way", () => {
  const first = ["pressed", { at: 0, detail: 1 }];
  assert.ok(!after(first).isIgnored);
  assert.ok(after(first, ["pressed", { at: DOUBLE_MS - 1, detail: 1 }]).isIgnored);
  assert.ok(after(first, ["pressed", { at: 10_000, detail: 2 }]).isIgnored);
  assert.ok(!after(first, ["pressed", { at: DOUBLE_MS, detail: 1 }]).isIgnored);
  const shown = RUNNING;
  assert.ok(!after(first, shown, ["pressed", { at: 1, detail: 1 }]).isIgnored);
});

test("a click on what appears under the pointer is the rest of a double click", () => {
  const generate = ["aimed", { id: "generate", at: 0, detail: 1 }];
  const stop = (at, detail = 1) => ["aimed", { id: "stop", at, detail }];
  assert.ok(!after(stop(0)).isIgnored);
  assert.ok(after(generate, stop(DOUBLE_MS - 1)).isIgnored);
  assert.ok(after(generate, stop(9_000, 2)).isIgnored);
  assert.ok(!after(generate, stop(DOUBLE_MS)).isIgnored);
  // An ignored click counts as one on the button before.
  assert.ok(after(generate, stop(400), stop(800)).isIgnored);
  assert.ok(!after(generate, ["aimed", { id: "generate", at: 1, detail: 1 }]).isIgnored);
});

test("what is told of something else does not end a request, and stands beside it", () => {
  const other = ["told", { line: { kind: "taken", text: "Settings loaded." } }];
  const state = after(named("a"), other);
  assert.ok(state.running);
  assert.equal(lineOf(state, TEXTS).text, "Starting…");
  assert.equal(state.aside, "Settings loaded.");
  assert.equal(reduce(state, { type: ended("a")[0], ...ended("a")[1] }).aside, "");
});

test("a refusal holds until its field changes, or the next press", () => {
  const refused = ["told", { line: { kind: "error", text: "Enter a prompt first.", field: "prompt" } }];
  const rest = [["corrected"], ["pressed", { at: 0 }], ["entered", { prompt: "a", at: 0 }]];
  assert.equal(lineOf(after(refused, ["live", { isOn: true }]), TEXTS).kind, "error");
  for (const action of rest) assert.equal(lineOf(after(refused, action), TEXTS).text, "");
});

test("settings that were taken can be given back until something is drawn", () => {
  const taken = [["taking", { fields: { prompt: "a" } }], ["told", { line: { kind: "taken", text: "Settings loaded." } }]];
  assert.equal(lineOf(after(...taken), TEXTS).action, "undo");
  assert.equal(lineOf(after(...taken, ["undone"]), TEXTS).text, "");
  assert.equal(after(...taken, named("a")).before, null);
});

// A model of the page's rules: which line each state may have, by what happened last.
const EVENTS = {
  begins: (random) => named(random("ab")),
  steps: () => RUNNING,
  ends: (random) => ended(random("ab")),
  stops: (random) => ["told", { line: { kind: "stopped", text: "Stopped at step 9 of 25.", ends: random("ab") } }],
  refuses: () => ["told", { line: { kind: "error", text: "No.", field: "prompt" } }],
  takes: () => ["told", { line: { kind: "taken", text: "Settings loaded." } }],
  takesBefore: () => ["taking", { fields: {} }],
  undoes: () => ["undone"],
  chooses: () => ["start", { hasStart: true }],
  frees: () => ["start", { hasStart: false }],
  switchesOn: () => ["live", { isOn: true }],
  switchesOff: () => ["live", { isOn: false }],
  shows: () => ["lives", { isShown: true }],
  hides: () => ["lives", { isShown: false }],
  loses: () => ["lost"],
  signsOut: () => ["lost", { isSignedOut: true }],
  returns: () => ["back"],
  types: () => ["corrected"],
  removes: () => ["removed"],
};

test("after any actions the line says what is so", () => {
  let seed = 7;
  const next = (most) => {
    seed = (seed * 1103515245 + 12345) % 2 ** 31;
    return Math.floor((seed / 2 ** 31) * most);
  };
  const random = (choices) => choices[next(choices.length)];
  for (let walk = 0; walk < 300; walk++) {
    let state = initial;
    let progress = "";
    for (let step = 0; step < 40; step++) {
      const [type, details] = EVENTS[random(Object.keys(EVENTS))](random);
      const before = state;
      state = reduce(state, { type, ...details });
      if (type === "told" && details.line.kind === "running") progress = details.line.text;
      const line = lineOf(state, TEXTS);
      const says = (text) => line.text.includes(text);
      if (state.away) {
        assert.equal(line.text, state.isSignedOut ? TEXTS.signed_out : TEXTS.away);
        assert.equal(line.action === "sign_in", state.isSignedOut);
        continue;
      }
      assert.ok(!says(TEXTS.away) && !says(TEXTS.signed_out));
      assert.equal(line.kind === "running", state.running);
      if (state.running) assert.equal(line.text, progress);
      if (says(TEXTS.paused)) assert.ok(state.live && state.hasStart);
      if (says(TEXTS.started)) assert.ok(state.hasStart);
      if (says(TEXTS.live)) assert.ok(state.isLive && !state.running);
      if (says("4 pictures")) assert.ok(!state.running && !state.isLive);
      if (line.action === "undo") assert.ok(state.before && line.kind === "taken");
      if (line.action === "finish") assert.equal(state.line.kind, "stopped");
      // A line about earlier pictures goes when a picture to start from comes or goes.
      if (type === "start" && state.hasStart !== before.hasStart && !state.running) {
        assert.ok(!says("4 pictures") && !says("Stopped") && !says("Settings"));
      }
    }
  }
});

test("a store tells of the new state and the one before", () => {
  const store = new Store();
  const told = [];
  store.subscribe((state, before) => told.push([before.hasStart, state.hasStart]));
  store.dispatch("start", { hasStart: true });
  assert.equal(store.dispatch("start", { hasStart: false }).hasStart, false);
  assert.deepEqual(told, [[false, true], [true, false]]);
  assert.equal(store.state.hasStart, false);
});

test("a new picture to start from is edited until drawing begins, and after that on demand", () => {
  const given = ["start", { hasStart: true, isNew: true }];
  const changed = ["start", { hasStart: true }];
  const ended = ["told", { line: { kind: "", text: "4 pictures" } }];
  assert.ok(after(given, changed).editing);
  assert.ok(!after(given, RUNNING, ended, changed).editing);
  assert.ok(after(RUNNING, given, RUNNING).editing); // while another request is drawn
  assert.ok(after(given, RUNNING, ["edit", { editing: true }]).editing);
  assert.ok(!after(given, ["edit", { editing: false }], changed).editing);
  assert.ok(!after(given, ["start", { hasStart: false }]).editing);
  assert.ok(!after(changed).editing); // the tab kept it
  assert.ok(!after(["edit", { editing: true }]).editing); // there is none
});

test("the fields before settings are taken are kept", () => {
  const fields = { prompt: "a star" };
  assert.equal(after(["taking", { fields }]).before, fields);
});
