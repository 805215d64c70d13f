import assert from 'node:assert/strict';
import test from 'node:test';

import { ROOT, addMessage, newConversation, pathOf, pathTo, placeOf, selectSibling, titleFrom } from '../../web/js/conversation.js';

function made(...rows) {
  const conversation = newConversation('c', 0);
  rows.forEach(([id, parent], index) => addMessage(conversation, { id, parent, role: 'user', content: id, created: index }));
  return conversation;
}

const ids = (messages) => messages.map((message) => message.id);

test('a message goes under its parent', () => {
  assert.deepEqual(ids(pathOf(made(['a', ROOT], ['b', 'a'], ['c', 'b']))), ['a', 'b', 'c']);
});

test('an edit is a branch, and both are kept', () => {
  const conversation = made(['a', ROOT], ['b', 'a'], ['a2', ROOT], ['b2', 'a2']);
  assert.deepEqual(ids(pathOf(conversation)), ['a2', 'b2']);
  assert.deepEqual(placeOf(conversation, 'a2'), { index: 1, count: 2, ids: ['a', 'a2'] });
  assert.equal(selectSibling(conversation, 'a2', -1), 'a');
  assert.deepEqual(ids(pathOf(conversation)), ['a', 'b']);
  assert.equal(selectSibling(conversation, 'a', -1), null);
  assert.equal(selectSibling(conversation, 'a', 1), 'a2');
  assert.deepEqual(ids(pathOf(conversation)), ['a2', 'b2']);
});

test('a branch remembers which of its own branches was shown', () => {
  const conversation = made(['a', ROOT], ['b', 'a'], ['b2', 'a'], ['a2', ROOT]);
  selectSibling(conversation, 'b2', -1);
  selectSibling(conversation, 'a2', -1);
  assert.deepEqual(ids(pathOf(conversation)), ['a', 'b']);
});

test('the way to a message does not depend on what is shown', () => {
  const conversation = made(['a', ROOT], ['b', 'a'], ['a2', ROOT]);
  assert.deepEqual(ids(pathTo(conversation, 'b')), ['a', 'b']);
});

test('an unknown parent is refused', () => assert.throws(() => made(['b', 'a']), RangeError));

test('a loop in a damaged tree ends', () => {
  const conversation = made(['a', ROOT], ['b', 'a']);
  conversation.messages.a.parent = 'b';
  assert.deepEqual(pathOf(conversation), []);
  assert.equal(pathTo(conversation, 'b').length, 2);
});

test('titles', () => {
  assert.equal(titleFrom('  Hello   there\nmore'), 'Hello there');
  assert.equal(titleFrom('🎉'.repeat(80)), `${'🎉'.repeat(59)}…`);
  assert.equal(titleFrom(' \n'), 'New chat');
});
