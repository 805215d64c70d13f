/** Keeps a growing log at its end, until the person scrolls up, and again once they are back. */

const NEAR = 40;

/** Fires `change` when it begins or ceases to follow. */
export class Follow extends EventTarget {
	isFollowing = true;
	#top = 0;

	constructor(scroller) {
		super();
		this.scroller = scroller;
		scroller.addEventListener('scroll', () => this.#scrolled(), { passive: true });
		new ResizeObserver(() => this.grown()).observe(scroller);
	}

	grown() {
		if (!this.isFollowing) return;
		this.scroller.scrollTop = this.scroller.scrollHeight;
		this.#top = this.scroller.scrollTop;
	}

	toEnd() {
		this.#set(true);
		this.grown();
	}

	#scrolled() {
		const { scrollTop, scrollHeight, clientHeight } = this.scroller;
		const isNear = scrollHeight - scrollTop - clientHeight < NEAR;
		if (isNear) this.#set(true);
		else if (scrollTop < this.#top - 2) this.#set(false);
		this.#top = scrollTop;
	}

	#set(isFollowing) {
		if (this.isFollowing === isFollowing) return;
		this.isFollowing = isFollowing;
		this.dispatchEvent(new Event('change'));
	}
}
