/** Conversations to files and back. Pure; what comes from a file is checked. */

import { ROOT, pathOf } from './conversation.js';
import { isRecord } from './settings.js';

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

const damaged = (what) => new Error(`A ${what} in this file is damaged.`);

function checked(given, newId) {
	if (!isRecord(given?.messages)) throw damaged('conversation');
	const ids = new Map([[ROOT, ROOT]]);
	for (const id of Object.keys(given.messages)) ids.set(id, newId());
	const messages = Object.entries(given.messages).map(([id, message]) => checkedMessage(message, ids, id));
	const selected = Object.entries(given.selected ?? {}).filter((pair) => pair.every((id) => ids.has(id)));
	const conversation = {
		id: newId(),
		title: typeof given.title === 'string' && given.title ? given.title.slice(0, 200) : 'New chat',
		created: time(given.created),
		updated: time(given.updated),
		messages: Object.fromEntries(messages.map((message) => [message.id, message])),
		selected: Object.fromEntries(selected.map(([parent, child]) => [ids.get(parent), ids.get(child)])),
	};
	if (messages.length && !pathOf(conversation).length) throw damaged('conversation');
	return conversation;
}

function checkedMessage(given, ids, id) {
	const isGood = id !== ROOT && isRecord(given) && ROLES.has(given.role) && typeof given.content === 'string' && ids.has(given.parent);
	if (!isGood) throw damaged('message');
	const message = { id: ids.get(id), parent: ids.get(given.parent), role: given.role, content: given.content, created: time(given.created) };
	if (given.role === 'assistant') message.status = 'done';
	if (typeof given.reasoning === 'string') message.reasoning = given.reasoning;
	if (Array.isArray(given.tokens) && given.tokens.every(isToken)) message.tokens = given.tokens.map(([text, logprob, others]) => [text, logprob, others.map((other) => other.slice(0, 2))]);
	return message;
}

const isPair = (value) => Array.isArray(value) && typeof value[0] === 'string' && Number.isFinite(value[1]);
const isToken = (value) => isPair(value) && Array.isArray(value[2]) && value[2].every(isPair);
const time = (value) => (value > 0 && value < 8e15 ? value : 0);
