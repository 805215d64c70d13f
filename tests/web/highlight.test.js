import assert from 'node:assert/strict';
import test from 'node:test';

import { highlightLine } from '../../web/js/highlight.js';
import { makeRandom } from './random.js';

function colour(language, text) {
  let state = '';
  return text.split('\n').map((line) => {
    const found = highlightLine(language, state, line);
    state = found.state;
    assert.equal(found.tokens.map(([, part]) => part).join(''), line);
    return found.tokens;
  });
}

test('python', () => {
  assert.deepEqual(colour('python', 'def f(x): # y')[0], [
    ['keyword', 'def'], ['', ' '], ['call', 'f'], ['', '(x): '], ['comment', '# y'],
  ]);
});

test('a string that goes on over lines', () => {
  const lines = colour('py', 'a = """b\nc\nd""" + 1');
  assert.deepEqual(lines[1], [['string', 'c']]);
  assert.deepEqual(lines[2], [['string', 'd"""'], ['', ' + '], ['number', '1']]);
});

test('a comment that goes on over lines', () => {
  const lines = colour('rust', 'let a; /* b\nc */ fn');
  assert.deepEqual(lines[1], [['comment', 'c */'], ['', ' '], ['keyword', 'fn']]);
});

test('sql in either case', () => assert.deepEqual(colour('sql', 'SELECT select')[0].map(([kind]) => kind), ['keyword', '', 'keyword']));

test('diff', () => assert.deepEqual(colour('diff', '+a\n-b\n c').flat().map(([kind]) => kind), ['added', 'removed', '']));

test('an unknown language, and names of an object of JavaScript', () => {
  for (const name of ['', 'klingon', '__proto__', 'constructor', 'toString']) assert.deepEqual(colour(name, 'if x')[0], [['', 'if x']]);
});

test('every text joins to itself, in every language', () => {
  const random = makeRandom(5);
  const parts = ['"', "'", '`', '"""', "'''", '/*', '*/', '//', '#', '<!--', '-->', '<a ', '\\', 'if', ' ', '0x1f', 'é', '@x', '$y', '\n', '(', '--', '>'];
  for (const name of ['js', 'python', 'c', 'rust', 'sql', 'sh', 'css', 'json', 'yaml', 'html']) {
    for (let round = 0; round < 200; round += 1) colour(name, Array.from({ length: 30 }, () => random.pick(parts)).join(''));
  }
});
