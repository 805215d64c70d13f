import assert from 'node:assert/strict';
import test from 'node:test';

import { duration, percent, when } from '../../web/js/format.js';

const NOW = new Date(2026, 5, 15, 12).getTime();
const at = (...parts) => when(new Date(...parts).getTime(), NOW);

test('a time is short, and says which year where that is in doubt', () => {
  assert.match(at(2026, 5, 15, 9, 5), /9[:.]05/);
  assert.match(at(2026, 3, 2), /2/);
  assert.doesNotMatch(at(2026, 3, 2), /2026/);
  assert.match(at(2024, 3, 2), /2024/);
  for (const text of [at(2026, 5, 15, 21, 5), at(2026, 10, 22), at(2024, 10, 22)]) assert.ok(text.length <= 9, text);
});

test('shares and durations are told as finely as they are meant', () => {
  assert.deepEqual([0, 0.004, 0.31, 0.999].map(percent), ['0%', '0.4%', '31%', '99.9%']);
  assert.deepEqual([84.4, 1840, 125_000].map(duration), ['84 ms', '1.8 s', '2 min 5 s']);
});
