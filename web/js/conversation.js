/**
 * A conversation is a tree: an edit or a new try is a sibling of what it replaces, and nothing is lost.
 *
 * `{ id, title, created, updated, messages: { id: message }, selected: { parent id or '': child id } }`.
 * A message is `{ id, parent, role, content, created, ... }`; `parent` is '' for the first ones.
 */

export const ROOT = '';

export function newConversation(id, now) {
	return { id, title: '', created: now, updated: now, messages: {}, selected: {} };
}

/** The children of each message, oldest first, for as long as no message is added. */
const known = new WeakMap();

function childrenOf({ messages }, parent) {
	if (!known.has(messages)) {
		const children = new Map();
		for (const message of Object.values(messages).sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1))) {
			if (!children.has(message.parent)) children.set(message.parent, []);
			children.get(message.parent).push(message);
		}
		known.set(messages, children);
	}
	return known.get(messages).get(parent) ?? [];
}

/** The messages that are shown: from the first, always to the selected child, else to the newest. */
export function pathOf(conversation) {
	const path = new Set();
	for (let at = ROOT, children; (children = childrenOf(conversation, at)).length; ) {
		const next = children.find(({ id }) => id === conversation.selected[at]) ?? children.at(-1);
		if (path.has(next)) break;
		path.add(next);
		at = next.id;
	}
	return [...path];
}

/** The messages from the first one down to `id`, whatever is selected. */
export function pathTo(conversation, id) {
	const path = new Set();
	for (let at = conversation.messages[id]; at && !path.has(at); at = conversation.messages[at.parent]) path.add(at);
	return [...path].reverse();
}

export function addMessage(conversation, message) {
	if (message.parent !== ROOT && !conversation.messages[message.parent]) {
		throw new RangeError('the parent of a message must be there first');
	}
	conversation.messages[message.id] = message;
	known.delete(conversation.messages);
	conversation.selected[message.parent] = message.id;
	return message;
}

/** Which of its siblings a message is: `{ index, count, ids }`. */
export function placeOf(conversation, id) {
	const ids = childrenOf(conversation, conversation.messages[id].parent).map((message) => message.id);
	return { index: ids.indexOf(id), count: ids.length, ids };
}

/** Shows the sibling that is `step` away from a message; returns its id, or null at the end. */
export function selectSibling(conversation, id, step) {
	const { index, ids } = placeOf(conversation, id);
	const sibling = ids[index + step];
	if (sibling === undefined) return null;
	conversation.selected[conversation.messages[id].parent] = sibling;
	return sibling;
}

export function titleFrom(text) {
	const line = text.trim().split('\n', 1)[0].replace(/\s+/g, ' ');
	const letters = Array.from(line);
	return letters.length > 60 ? `${letters.slice(0, 59).join('').trimEnd()}…` : line || 'New chat';
}
