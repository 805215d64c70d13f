/** The list of conversations. */

import { button, byId, el, icon, iconButton, keepFocus } from './dom.js';
import { openMenu } from './dialogs.js';
import { when } from './format.js';

export class Sidebar {
	#heads = [];
	#matches = null;
	#searches = 0;

	constructor(app) {
		this.app = app;
		this.list = byId('conversations');
		this.note = byId('conversations-note');
		this.search = byId('search');
		byId('new-chat').prepend(icon('plus'));
		byId('new-chat').addEventListener('click', () => app.newChat());
		this.search.addEventListener('input', () => this.#find());
		const more = button('Import, export, clear', () => openMenu(more, [
			{ label: 'Import from a file…', action: () => app.importFile() },
			{ label: 'Export all as JSON', action: () => app.exportAll() },
			{ label: 'Keyboard shortcuts', action: () => app.showKeys() },
			{ label: 'Delete all conversations…', action: () => app.clearAll(), danger: true },
		]), { class: 'button quiet', 'aria-haspopup': 'menu' });
		byId('sidebar-foot').append(more);
	}

	async refresh() {
		this.#heads = await this.app.store.list();
		await this.#find();
	}

	async #find() {
		const wanted = this.search.value.trim();
		const search = (this.#searches += 1);
		const matches = wanted ? await this.app.store.search(wanted, () => search !== this.#searches) : null;
		if (search !== this.#searches) return; // more was typed meanwhile
		this.#matches = matches;
		this.#show();
	}

	#show() {
		const shown = this.#heads.filter(({ id }) => this.#matches?.has(id) ?? true);
		keepFocus(this.list, () => this.list.replaceChildren(...shown.map((head) => this.#row(head))), (at) => this.list.querySelectorAll('button')[at] ?? this.search);
		this.note.hidden = shown.length > 0;
		this.note.textContent = this.#matches ? 'No conversation has this.' : 'Conversations are kept in this browser and show up here.';
	}

	#row(head) {
		const { app } = this;
		const isCurrent = head.id === app.conversation.id;
		const title = head.title || 'New chat';
		const more = iconButton('more', `More for ${title}`, () => openMenu(more, [
			{ label: 'Rename…', action: () => app.rename(head.id) },
			{ label: 'Export as JSON', action: () => app.exportOne(head.id, 'json') },
			{ label: 'Export as Markdown', action: () => app.exportOne(head.id, 'md') },
			{ label: 'Delete…', action: () => app.remove(head.id), danger: true },
		]), { 'aria-haspopup': 'menu' });
		return el('li', { class: isCurrent ? 'current' : null },
			el('button.row', { 'aria-current': isCurrent ? 'true' : null, onclick: () => app.open(head.id) },
				el('span.row-title', { dir: 'auto' }, title), el('span.row-time', when(head.updated))),
			more);
	}
}
