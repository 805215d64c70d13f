import assert from 'node:assert/strict';
import test from 'node:test';

import { pathOf } from '../../web/js/conversation.js';
import { fileName, fromJson, toJson, toMarkdown } from '../../web/js/transfer.js';

let made = 0;
const newId = () => `id${(made += 1)}`;
const message = (more) => ({ role: 'user', parent: '', content: 'hi', created: 1, ...more });
const file = (...conversations) => JSON.stringify({ format: 'tinyllm.conversations', version: 1, conversations });
const read = (text) => fromJson(text, newId);

test('what is exported is imported, under ids of its own', () => {
  const tokens = [['a', -0.1, [['a', -0.1], ['b', -3]]]];
  const messages = {
    a: message({ id: 'a' }),
    b: message({ id: 'b', parent: 'a', role: 'assistant', content: 'one', reasoning: 'why', tokens }),
    c: message({ id: 'c', parent: 'a', role: 'assistant', content: 'two', created: 2 }),
  };
  const given = { id: 'x', title: 'T', created: 1, updated: 2, messages, selected: { '': 'a', a: 'b' } };
  const text = toJson([given]);
  const [one] = read(text);
  assert.deepEqual(pathOf(one).map(({ content }) => content), ['hi', 'one']);
  assert.deepEqual(pathOf(one)[1].tokens, tokens);
  assert.equal(pathOf(one)[1].reasoning, 'why');
  assert.deepEqual([one.title, one.created, one.updated, Object.keys(one.messages).length], ['T', 1, 2, 3]);
  assert.ok(!['x', 'a', 'b', 'c'].some((id) => id === one.id || Object.hasOwn(one.messages, id)));
  assert.equal(toMarkdown(one), '# T\n\n## You\n\nhi\n\n## Assistant\n\none\n');
});

const DEEP = '['.repeat(100_000) + ']'.repeat(100_000);
const REFUSED = {
  nothing: '',
  'no JSON': 'conversations',
  null: 'null',
  'a list': '[]',
  'a format by its prototype only': '{"__proto__":{"format":"tinyllm.conversations","conversations":[]}}',
  'no conversations': file(null, 5),
  'deep lists': file().replace('[]', DEEP),
  'no messages': file({ title: 't' }),
  'a parent that is not there': file({ messages: { a: message({ parent: 'constructor' }) } }),
  'a parent that is no text': file({ messages: { a: message({ parent: [] }) } }),
  'its own parent': file({ messages: { a: message({ parent: 'a' }) } }),
  'a loop': file({ messages: { a: message({ parent: 'b' }), b: message({ parent: 'a' }) } }),
  'a message without an id': file({ messages: { '': message() } }),
  'a role of another kind': file({ messages: { a: message({ role: 'system' }) } }),
  'content that is no text': file({ messages: { a: message({ content: [{ type: 'text', text: 'x' }] }) } }),
};
for (const [name, text] of Object.entries(REFUSED)) {
  test(`import refuses ${name}`, () => assert.throws(() => read(text), /^Error: (This file|A conversation in this file|A message in this file) /));
}

const ODD = {
  'an empty one': { messages: {} },
  'a title that is no text': { title: { toString: 1 }, messages: { a: message() } },
  'times without end': { created: 1e308, updated: -1e308, messages: { a: message({ created: 'x' }) } },
  'fields of other kinds': { messages: { a: message({ role: 'assistant', reasoning: 5, model: {}, usage: 'x', failure: { kind: 'x' }, status: 'running' }) } },
  'tokens of other kinds': { messages: { a: message({ role: 'assistant', tokens: [['a', null, []]] }) } },
  'choices that are not there': { messages: { a: message() }, selected: { '': 'x', a: 5, constructor: 'a' } },
};
for (const [name, conversation] of Object.entries(ODD)) {
  test(`import takes only what is right of ${name}`, () => {
    const [one] = read(file(conversation));
    assert.equal(one.title, 'New chat');
    for (const time of [one.created, one.updated]) assert.ok(!Number.isNaN(new Date(time).getTime()));
    for (const { status, tokens, reasoning, failure } of pathOf(one)) {
      assert.deepEqual([status === 'running', tokens, reasoning, failure], [false, undefined, undefined, undefined]);
    }
    assert.deepEqual(one.selected, {});
  });
}

test('import keeps nothing that it does not know, however deep', () => {
  const text = file({ messages: { a: message({ role: 'assistant', other: 'DEEP', tokens: [['a', -1, [['b', -2, 'DEEP']], 'DEEP']] }) }, other: 'DEEP' });
  const all = read(text.replaceAll('"DEEP"', DEEP));
  structuredClone(all);
  assert.deepEqual(pathOf(all[0])[0].tokens, [['a', -1, [['b', -2]]]]);
});

test('import does not reach the prototypes', () => {
  const [one] = read('{"format":"tinyllm.conversations","conversations":[{"messages":{"__proto__":{"role":"user","parent":"","content":"x"},"constructor":{"role":"user","parent":"__proto__","content":"y"}},"selected":{"__proto__":"constructor","":"__proto__"}}]}');
  assert.deepEqual(pathOf(one).map(({ content }) => content), ['x', 'y']);
  assert.equal({}.role, undefined);
  assert.equal({}.constructor, Object);
});

test('a long conversation is read quickly', () => {
  const messages = Object.fromEntries(Array.from({ length: 20_000 }, (_, at) => [`m${at}`, message({ parent: at ? `m${at - 1}` : '', created: at })]));
  const started = process.cpuUsage();
  assert.equal(pathOf(read(file({ messages }))[0]).length, 20_000);
  assert.ok(process.cpuUsage(started).user < 2e6);
});

test('names of files', () => {
  assert.equal(fileName('../../a b: c?*', 'md'), 'a-b-c.md');
  assert.equal(fileName('🎉', 'json'), 'chat.json');
  assert.equal(fileName('漢字 é', 'md'), '漢字-é.md');
});
