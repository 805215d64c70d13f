/** An answer token by token: coloured by how sure the model was, with what else it might have said. */

import { el } from './dom.js';
import { count, percent } from './format.js';

const PAGE = 4000;

const stepOf = (logprob) => [0.9, 0.6, 0.3, 0.1].filter((limit) => Math.exp(logprob) < limit).length;

/** A token's text with what cannot be seen made visible. */
const visible = (text) => text.replaceAll('\n', '⏎').replaceAll('\t', '⇥').replaceAll(' ', '␣') || '(nothing)';

/** Returns the element. Arrow keys go from token to token. */
export function tokenView(tokens) {
	const list = el('div.tokens', { role: 'listbox', 'aria-label': 'Tokens', dir: 'auto', tabindex: '0' });
	const detail = el('div.token-detail', { role: 'status' });
	const spans = [];
	let chosen = -1;

	const more = () => {
		const next = tokens.slice(spans.length, spans.length + PAGE);
		for (const token of next) list.append(tokenSpan(token, spans));
		rest.hidden = spans.length === tokens.length;
	};
	const choose = (index, scroll = false) => {
		if (!spans[index]) return;
		spans[chosen]?.setAttribute('aria-selected', 'false');
		chosen = index;
		spans[index].setAttribute('aria-selected', 'true');
		list.setAttribute('aria-activedescendant', spans[index].id);
		if (scroll) spans[index].scrollIntoView({ block: 'nearest' });
		detail.replaceChildren(...detailOf(tokens[index], index, tokens.length));
	};
	const at = (event) => spans.indexOf(event.target);
	list.addEventListener('pointerover', (event) => choose(at(event)));
	list.addEventListener('click', (event) => choose(at(event)));
	list.addEventListener('focus', () => choose(Math.max(chosen, 0)));
	list.addEventListener('keydown', (event) => {
		const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
		if (step === undefined) return;
		event.preventDefault();
		choose(Math.max(0, Math.min(spans.length - 1, chosen + step)), true);
	});
	const rest = el('button.button.quiet', { onclick: more }, 'Show more tokens');
	more();
	choose(0);
	return el('div.token-view', legend(), list, rest, detail);
}

let counter = 0;

function tokenSpan(token, spans) {
	const [text, logprob] = token;
	counter += 1;
	const props = { class: `token sure-${stepOf(logprob)}`, id: `token-${counter}`, role: 'option', 'aria-selected': 'false' };
	const span = el('span', props, text.replaceAll('\n', '⏎\n') || '·');
	spans.push(span);
	return span;
}

function legend() {
	const steps = ['over 90%', '60–90%', '30–60%', '10–30%', 'under 10%'];
	return el('p.token-legend', 'How likely each token was: ', ...steps.map((text, step) => el('span', { class: `token sure-${step}` }, text)));
}

function detailOf([text, logprob, others], index, total) {
	const rows = others.some(([other]) => other === text) ? others : [[text, logprob], ...others];
	return [
		el('p', el('code', visible(text)), ` ${percent(Math.exp(logprob))} · log probability ${logprob.toFixed(3)} · token ${count(index + 1)} of ${count(total)}`),
		el('ul.alternatives', rows.map(([other, value]) => alternative(other, value, other === text))),
	];
}

function alternative(text, logprob, isChosen) {
	const bar = el('span.bar');
	bar.style.inlineSize = `${100 * Math.exp(logprob)}%`;
	return el('li', { class: isChosen ? 'chosen' : null }, el('code', visible(text)), el('span.bar-track', bar), el('span', percent(Math.exp(logprob))));
}
