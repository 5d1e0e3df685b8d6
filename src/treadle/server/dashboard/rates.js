// How fast tokens came between two looks at the server, for each model over the last minutes.

export const WINDOW_SECONDS = 300;

const all = new Map();

/** Takes note of a look; returns the samples of the model, the latest last, each with `at`, `answer` and `prompt`. */
export function ratesOf(stats, name) {
  for (const model of stats.models) take(stats.clock_seconds, model);
  return all.get(name)?.samples ?? [];
}

function take(at, model) {
  const kept = all.get(model.name) ?? { samples: [], before: null };
  all.set(model.name, kept);
  const { before } = kept;
  if (before && at <= before.at) return; // the same look again
  kept.before = model.tokens ? { at, tokens: model.tokens } : null;
  const isNext = before && model.tokens && model.tokens.answer >= before.tokens.answer && model.tokens.prompt >= before.tokens.prompt;
  if (isNext) kept.samples.push(sample(before, at, model.tokens));
  else if (before) kept.samples = []; // loaded anew, or another server
  kept.samples = kept.samples.filter((each) => each.at > at - WINDOW_SECONDS);
}

function sample(before, at, tokens) {
  const span = at - before.at;
  return { from: before.at, at, answer: (tokens.answer - before.tokens.answer) / span, prompt: (tokens.prompt - before.tokens.prompt) / span };
}
