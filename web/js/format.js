/** Numbers and times as people read them. */

const whole = new Intl.NumberFormat();
const LONG_AGO = 2e10;

export const count = (number) => (Number.isFinite(number) ? whole.format(Math.min(Math.round(number), 1e15)) : '–');
export const percent = (share) => `${(100 * share).toFixed((share && share < 0.1) || share > 0.995 ? 1 : 0)}%`;
export const rate = (perSecond) => (perSecond && perSecond < 10 ? perSecond.toFixed(1) : count(perSecond));
export const tokensText = (number) => `${count(number)} ${number === 1 ? 'token' : 'tokens'}`;

export function duration(ms) {
	if (ms < 1000) return `${Math.round(ms)} ms`;
	return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function when(time, now = Date.now()) {
	const date = new Date(time);
	const sameDay = new Date(now).toDateString() === date.toDateString();
	return sameDay ? date.toLocaleTimeString([], { hour: 'numeric', minute: '2-digit' }) : date.toLocaleDateString([], { month: 'short', [now - time > LONG_AGO ? 'year' : 'day']: 'numeric' });
}
