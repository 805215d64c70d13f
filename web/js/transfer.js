/** Conversations to files and back. Pure; what comes from a file is checked. */

import { ROOT, pathOf } from './conversation.js';

const FORMAT = 'tinyllm.conversations';
const ROLES = new Set(['user', 'assistant']);

export function toJson(conversations) {
	return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

export function toMarkdown(conversation) {
	const parts = pathOf(conversation).map(({ role, content }) => `## ${role === 'user' ? 'You' : 'Assistant'}\n\n${content.trim()}\n`);
	return `# ${conversation.title}\n\n${parts.join('\n')}`;
}

/** A name for a file, out of a title. */
export const fileName = (title, ending) => `${title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || 'chat'}.${ending}`;

/**
 * Reads conversations from a file. All ids are made new, so that nothing that is there is overwritten.
 * Throws an `Error` whose message is for people.
 */
export function fromJson(text, newId) {
	let data;
	try {
		data = JSON.parse(text);
	} catch {
		throw new Error('This file is not JSON.');
	}
	if (data?.format !== FORMAT || !Array.isArray(data.conversations)) throw new Error('This file was not exported from here.');
	return data.conversations.map((conversation) => checked(conversation, newId));
}

function checked(given, newId) {
	if (!isRecord(given) || !isRecord(given.messages)) throw new Error('A conversation in this file is damaged.');
	const ids = new Map([[ROOT, ROOT]]);
	for (const id of Object.keys(given.messages)) ids.set(id, newId());
	const messages = Object.entries(given.messages).map(([id, message]) => checkedMessage(message, ids, id));
	const selected = Object.entries(isRecord(given.selected) ? given.selected : {}).filter((pair) => pair.every((id) => ids.has(id)));
	return {
		id: newId(),
		title: String(given.title || 'New chat').slice(0, 200),
		created: time(given.created),
		updated: time(given.updated),
		messages: Object.fromEntries(messages.map((message) => [message.id, message])),
		selected: Object.fromEntries(selected.map(([parent, child]) => [ids.get(parent), ids.get(child)])),
	};
}

function checkedMessage(given, ids, id) {
	const isGood = isRecord(given) && ROLES.has(given.role) && typeof given.content === 'string' && ids.has(given.parent);
	if (!isGood) throw new Error('A message in this file is damaged.');
	const message = { id: ids.get(id), parent: ids.get(given.parent), role: given.role, content: given.content, created: time(given.created) };
	if (given.role === 'assistant') message.status = 'done';
	if (typeof given.reasoning === 'string') message.reasoning = given.reasoning;
	if (typeof given.model === 'string') message.model = given.model.slice(0, 200);
	if (Array.isArray(given.tokens) && given.tokens.every(isToken)) message.tokens = given.tokens;
	return message;
}

const isRecord = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const isPair = (value) => Array.isArray(value) && typeof value[0] === 'string' && typeof value[1] === 'number';
const isToken = (value) => isPair(value) && Array.isArray(value[2]) && value[2].every(isPair);
const time = (value) => (Number.isFinite(value) ? value : 0);
