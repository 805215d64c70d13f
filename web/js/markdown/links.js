/** Which addresses may become links: those that open a page or a mail, and nothing that runs or hides. */

const SAFE = /^(?:https?:\/\/|mailto:)/i;

/** Returns the address to link to, or null if it is not to be a link. */
export function safeUrl(raw) {
	if (raw.length > 2048 || !SAFE.test(raw) || /[\u0000-\u0020\u007f-\u009f]/.test(raw)) return null;
	let url;
	try {
		url = new URL(raw);
	} catch {
		return null;
	}
	if (!['http:', 'https:', 'mailto:'].includes(url.protocol)) return null;
	return url.username || url.password ? null : url.href; // https://bank.example@other.example
}
