// The list of turns: keeps to its end while an answer grows, unless the reader went elsewhere.

const NEAR_PIXELS = 60;

export class Scroller {
  /** `frame` scrolls, `list` holds the turns, `newest` is the button that leads back to the end. */
  constructor(frame, list, newest) {
    this.frame = frame;
    this.list = list;
    this.newest = newest;
    this.isAtEnd = true;
    new ResizeObserver(() => this.#resized()).observe(frame);
    frame.addEventListener("scroll", () => this.#look(), { passive: true });
    newest.addEventListener("click", () => {
      this.follow(true);
      frame.focus();
    });
  }

  add(item) {
    this.list.append(item);
  }

  cut(length) {
    while (this.list.children.length > length) this.list.lastChild.remove();
  }

  clear() {
    this.list.replaceChildren();
    this.#look();
  }

  follow(always) {
    if (always || this.isAtEnd) this.frame.scrollTop = this.frame.scrollHeight;
    this.#look();
  }

  /** What is below keeps in line with the turns, beside which there is room for a scroll bar. */
  #resized() {
    const gutter = (this.frame.offsetWidth - this.frame.clientWidth) / 2;
    this.newest.parentElement.style.setProperty("--gutter", `${gutter}px`);
    this.follow(false);
  }

  #look() {
    const { scrollHeight, scrollTop, clientHeight } = this.frame;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_PIXELS;
    this.newest.hidden = this.isAtEnd;
  }
}
