// Controls as texts.
import assert from "node:assert/strict";
import { test } from "node:test";

import { mapOf, numberOf, read, withNumber, withNumbersOf } from "../../ui/static/start/controls.js";

test("a text is read if it has one control", () => {
  const values = { scale: "0.8", preprocessor: "canny" };
  assert.deepEqual(read("canny:scale=0.8:preprocessor=canny"), { name: "canny", values });
  assert.deepEqual(read("a.b-c"), { name: "a.b-c", values: {} });
  for (const text of ["", "canny,depth"]) assert.equal(read(text), null);
});

test("numbers have defaults, which are not written", () => {
  assert.equal(numberOf("canny:scale=0.8", "scale"), 0.8);
  for (const text of ["canny", "", "canny:scale=0.5,depth"]) assert.equal(numberOf(text, "scale"), 1);
  assert.equal(withNumber("canny:preprocessor=canny", "end", 0.6), "canny:preprocessor=canny:end=0.6");
  assert.equal(withNumber("canny:scale=0.8:start=0.1", "scale", 1), "canny:start=0.1");
  assert.equal(withNumber("canny", "scale", 0), "canny:scale=0");
});

test("another choice keeps the numbers", () => {
  assert.equal(withNumbersOf("canny:end=0.6:threshold_a=50", "depth"), "depth:end=0.6");
  assert.equal(withNumbersOf("", "depth:type=depth"), "depth:type=depth");
  assert.equal(withNumbersOf("a,b", "depth"), "depth");
});

test("the map depends neither on the numbers nor on the order of values", () => {
  const map = mapOf("u:type=hard:preprocessor=canny");
  assert.equal(mapOf("u:preprocessor=canny:scale=0.5:type=hard:control_mode=prompt"), map);
  for (const text of ["u:type=hard", "v:type=hard:preprocessor=canny", "u:type=hard:preprocessor=canny:threshold_a=9"]) {
    assert.notEqual(mapOf(text), map);
  }
  assert.equal(mapOf("a:scale=0.5,b"), "a:scale=0.5,b");
});
