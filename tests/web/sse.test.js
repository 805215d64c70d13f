import assert from 'node:assert/strict';
import test from 'node:test';

import { SseParser } from '../../web/js/sse.js';

const FIXTURE =
  '\ufeffdata: {"a":"é 漢字 🎉"}\n\n: ping\n\ndata: one\r\ndata:two\r\n\r\nevent: other\rdata:  spaced\rid: 7\r\r' +
  'data\n\nretry: 5\nunknown: x\ndatabase: x\ndata2\n\ndata: [DONE]\n\ndata: broken off\n';
const EXPECTED = ['{"a":"é 漢字 🎉"}', 'one\ntwo', ' spaced', '', '[DONE]'];
const bytes = new TextEncoder().encode(FIXTURE);

function parse(...chunks) {
  const parser = new SseParser();
  return chunks.flatMap((chunk) => parser.push(chunk));
}

test('a stream in one piece', () => assert.deepEqual(parse(bytes), EXPECTED));

test('a stream cut anywhere once', () => {
  for (let at = 0; at <= bytes.length; at += 1) {
    assert.deepEqual(parse(bytes.subarray(0, at), bytes.subarray(at)), EXPECTED, `cut at ${at}`);
  }
});

test('a stream cut anywhere twice', () => {
  for (let a = 0; a <= bytes.length; a += 1) {
    for (let b = a; b <= bytes.length; b += 1) {
      assert.deepEqual(parse(bytes.subarray(0, a), bytes.subarray(a, b), bytes.subarray(b)), EXPECTED, `${a}, ${b}`);
    }
  }
});

test('a stream byte by byte', () => {
  assert.deepEqual(parse(...Array.from(bytes, (byte) => Uint8Array.of(byte))), EXPECTED);
});

test('an event that the stream breaks off inside does not show', () => {
  assert.deepEqual(parse(new TextEncoder().encode('data: {"half":')), []);
});

test('a line without an end does not fill the memory', () => {
  const parser = new SseParser();
  const chunk = new Uint8Array(1 << 20).fill(97);
  assert.throws(() => {
    for (let count = 0; count < 64; count += 1) parser.push(chunk);
  }, RangeError);
});
