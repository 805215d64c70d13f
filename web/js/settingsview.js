/** The settings as a form. What is typed holds at once. */

import { askText } from './dialogs.js';
import { button, el } from './dom.js';
import { BUILT_IN_PRESETS, FIELDS, parseField } from './settings.js';

export class SettingsView {
	#inputs = new Map();

	constructor(app) {
		this.app = app;
		const { settings } = app;
		this.preset = el('select', { onchange: () => this.#apply() });
		this.remove = button('Delete preset', () => this.#removePreset(), { class: 'button quiet' });
		this.system = this.#area('system', 'You are a helpful assistant.', 4);
		this.stop = this.#area('stop', 'One text a line', 2);
		this.stream = el('input', { type: 'checkbox', onchange: () => settings.change({ stream: this.stream.checked }) });
		this.keyNote = el('span.help');
		this.element = el('div.settings',
			el('label.field', 'System prompt', this.system),
			el('fieldset', el('legend', 'Sampling'),
				el('div.preset-row', el('label.field', 'Preset', this.preset), button('Save as…', () => this.#savePreset(), { class: 'button quiet' }), this.remove),
				el('div.grid', FIELDS.map((field) => this.#field(field)))),
			el('label.field', 'Stop texts', this.stop, el('span.help', 'The answer ends before any of these. \\n stands for a line’s end.')),
			el('label.check', this.stream, 'Show the answer while it is made'),
			el('div.key-row', button('API key…', () => app.enterKey()), this.keyNote),
		);
		settings.addEventListener('change', () => this.#show());
		settings.addEventListener('key', () => this.#show());
		app.server.addEventListener('change', () => this.#showDefaults());
		this.#show();
		this.#showDefaults();
	}

	#area(name, placeholder, rows) {
		const area = el('textarea', { rows, placeholder, dir: 'auto', oninput: () => this.app.settings.change({ [name]: area.value }) });
		return area;
	}

	#field(field) {
		const problem = el('span.problem', { id: `problem-${field.name}` });
		const input = el('input', { type: 'text', inputmode: field.whole ? 'numeric' : 'decimal', autocomplete: 'off', 'aria-describedby': `help-${field.name} problem-${field.name}`, oninput: () => this.#typed(field, input, problem) });
		this.#inputs.set(field.name, input);
		return el('div.field', el('label', { for: `field-${field.name}` }, field.label), Object.assign(input, { id: `field-${field.name}` }), el('span.help', { id: `help-${field.name}` }, field.help), problem);
	}

	#typed(field, input, note) {
		const { value, problem } = parseField(field, input.value);
		note.textContent = problem ?? '';
		input.setAttribute('aria-invalid', String(problem !== undefined));
		if (problem === undefined) this.app.settings.setValue(field.name, value);
	}

	/** Shows what holds, but does not touch a field that is being typed in. */
	#show() {
		const { settings } = this.app;
		const put = (input, text) => {
			if (input !== document.activeElement) input.value = text;
		};
		put(this.system, settings.all.system);
		put(this.stop, settings.all.stop);
		for (const [name, input] of this.#inputs) put(input, String(settings.all.values[name] ?? ''));
		this.stream.checked = settings.all.stream;
		this.keyNote.textContent = settings.key ? (settings.keepKey ? 'A key is kept in this browser.' : 'A key is held until the page is closed.') : 'No key is set.';
		this.#showPresets();
	}

	#showPresets() {
		const { settings } = this.app;
		const current = settings.presetName();
		const names = Object.keys(settings.presets());
		const options = [...names, ...(current ? [] : [''])].map((name) => el('option', { value: name, selected: name === current }, name || 'Your own values'));
		this.preset.replaceChildren(...options);
		this.remove.hidden = !current || Object.hasOwn(BUILT_IN_PRESETS, current);
	}

	#showDefaults() {
		const defaults = this.app.server.props?.sampling_defaults ?? {};
		for (const { name, otherwise = 'default' } of FIELDS) this.#inputs.get(name).placeholder = String(defaults[name] ?? otherwise);
	}

	#apply() {
		const values = this.app.settings.presets()[this.preset.value];
		if (values) this.app.settings.change({ values: { ...values } });
	}

	async #savePreset() {
		const { settings } = this.app;
		const name = await askText('Save these values', 'Name', '', 'Save');
		if (!name || Object.hasOwn(BUILT_IN_PRESETS, name)) return;
		settings.change({ presets: { ...settings.all.presets, [name]: { ...settings.all.values } } });
	}

	#removePreset() {
		const { settings } = this.app;
		const { [settings.presetName()]: _, ...presets } = settings.all.presets;
		settings.change({ presets });
	}
}
