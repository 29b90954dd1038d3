//! From the dial, and from what a request says besides, to what the engine decodes by.

use sluice_engine::{Generate, Work, decode::policy::policy};
use sluice_proto::model::{Caching, DecodingChoice, Dial, Growth, Speculation};
use sluice_shared::{decoding::Decoding, dial::Bundle};

/// Writes into the request what was chosen: what it says itself, and the dial's word for all else. `default` is meant where
/// it names no dial, and does not ask for steps alone, which are the reference's. `is_bus_bound` tells of a request that can be
/// done whether its passes wait for streamed weights longer than they compute. Returns the dial in force.
pub(super) fn settle(
    work: &mut Generate,
    asked: &DecodingChoice,
    has_steps: bool,
    default: Dial,
    is_bus_bound: impl Fn(&Work) -> bool,
) -> Dial {
    let is_scheduled = has_steps && asked.policy.is_none();
    let dial = asked.dial.unwrap_or(match is_scheduled {
        true => Dial::Exact,
        false => default,
    });
    let bundle = dial.resolve(|bundle| {
        let mut work = work.clone();
        lay(&mut work, asked, bundle);
        is_bus_bound(&Work::Generate(work))
    });
    lay(work, asked, &bundle);
    dial
}

/// Lays what was asked for over the bundle, word by word.
fn lay(work: &mut Generate, asked: &DecodingChoice, bundle: &Bundle) {
    let Bundle { policy, decoding } = bundle;
    let growth = asked.growth.unwrap_or(decoding.growth);
    let speculation = asked.speculation.unwrap_or(decoding.speculation);
    // A window as wide as the canvas leaves nothing out, and a canvas that is appended to has nothing behind its block.
    let proposed = decoding.window.filter(|_| growth != Growth::Append);
    let window = asked.window.or(proposed);
    let window = window.filter(|masks| (*masks as usize) < work.canvas.len());
    work.policy = asked.policy.unwrap_or(*policy);
    let caching = match asked.caching {
        Some(caching) => caching,
        None if refuses_caches(work, speculation) => Caching::default(),
        None => decoding.caching,
    };
    work.decoding = Decoding {
        caching,
        window,
        growth,
        speculation,
    };
}

/// What nobody asked for gives way to what somebody did.
fn refuses_caches(work: &Generate, speculation: Speculation) -> bool {
    speculation != Speculation::None || policy(&work.policy).needs().checks
}

#[cfg(test)]
mod tests {
    use sluice_engine::ModelId;
    use sluice_proto::model::Cache;

    use super::*;

    /// What a request with these words comes to, on a machine where computing takes the time.
    fn settled(asked: &DecodingChoice, has_steps: bool, default: Dial) -> (Dial, Generate) {
        let mut work = Generate::greedy(ModelId(1), vec![1], 128);
        let dial = settle(&mut work, asked, has_steps, default, |_| false);
        (dial, work)
    }

    #[test]
    fn without_a_word_the_daemons_dial_is_meant() {
        let nothing = DecodingChoice::default();
        for default in [Dial::Exact, Dial::Balanced] {
            let (dial, work) = settled(&nothing, false, default);
            let Bundle { policy, decoding } = default.resolve(|_| false);
            assert_eq!(dial, default);
            assert_eq!((work.policy, work.decoding), (policy, decoding));
        }
    }

    #[test]
    fn steps_alone_are_the_references() {
        let mut asked = DecodingChoice::default();
        assert_eq!(settled(&asked, true, Dial::Fast).0, Dial::Exact);
        asked.policy = Some("factor".parse().unwrap());
        assert_eq!(settled(&asked, true, Dial::Fast).0, Dial::Fast);
        let asked = DecodingChoice {
            dial: Some(Dial::Quality),
            ..DecodingChoice::default()
        };
        assert_eq!(settled(&asked, true, Dial::Fast).0, Dial::Quality);
    }

    #[test]
    fn each_word_takes_the_place_of_the_dials_and_no_other() {
        let fast = settled(&DecodingChoice::default(), false, Dial::Fast).1;
        let with = |change: fn(&mut DecodingChoice)| {
            let mut asked = DecodingChoice {
                dial: Some(Dial::Fast),
                ..DecodingChoice::default()
            };
            change(&mut asked);
            settled(&asked, false, Dial::Exact).1
        };
        let mut expected = fast.clone();
        expected.policy = "factor".parse().unwrap();
        assert_eq!(
            with(|asked| asked.policy = Some("factor".parse().unwrap())),
            expected
        );
        let mut expected = fast.clone();
        expected.decoding.caching = "prefix".parse().unwrap();
        assert_eq!(
            with(|asked| asked.caching = Some("prefix".parse().unwrap())),
            expected
        );
        let mut expected = fast.clone();
        expected.decoding.growth = Growth::Append;
        expected.decoding.window = None;
        assert_eq!(with(|asked| asked.growth = Some(Growth::Append)), expected);
        let mut expected = fast;
        expected.decoding.window = Some(127);
        assert_eq!(with(|asked| asked.window = Some(127)), expected);
        // All of them.
        expected.decoding.window = None;
        assert_eq!(with(|asked| asked.window = Some(128)), expected);
    }

    #[test]
    fn a_cache_that_nobody_asked_for_gives_way() {
        let draft = Speculation::Draft { branches: 2 };
        let mut asked = DecodingChoice {
            dial: Some(Dial::Balanced),
            speculation: Some(draft),
            ..DecodingChoice::default()
        };
        let (_, work) = settled(&asked, false, Dial::Exact);
        assert_eq!(work.decoding.speculation, draft);
        assert_eq!(work.decoding.caching.kind, Cache::None);
        // One that somebody asked for is left for the engine to refuse.
        asked.caching = Some("dual".parse().unwrap());
        let (_, work) = settled(&asked, false, Dial::Exact);
        assert_eq!(work.decoding.caching.kind, Cache::Dual);
    }

    #[test]
    fn a_dial_asks_about_what_would_be_done() {
        let bound = |asked: DecodingChoice, is_bus_bound: fn(&Generate) -> bool| {
            let mut work = Generate::greedy(ModelId(1), vec![1], 128);
            settle(&mut work, &asked, false, Dial::Exact, |work| {
                let Work::Generate(work) = work else {
                    panic!("a generation");
                };
                is_bus_bound(work)
            });
            work.decoding
        };
        let draft = Speculation::Draft { branches: 3 };
        let nothing = DecodingChoice::default;
        assert_eq!(bound(nothing(), |_| true).speculation, draft);
        // With the cache that was asked for, which refuses it.
        let cached = DecodingChoice {
            caching: Some("dual".parse().unwrap()),
            ..nothing()
        };
        let can_be_done = |work: &Generate| work.decoding.caching.kind == Cache::None;
        assert_eq!(bound(cached, can_be_done).speculation, Speculation::None);
        let alone = DecodingChoice {
            speculation: Some(Speculation::None),
            ..nothing()
        };
        assert_eq!(bound(alone, |_| true).speculation, Speculation::None);
        let auto = DecodingChoice {
            dial: Some(Dial::Auto),
            ..nothing()
        };
        let explore = Speculation::Explore { branches: 3 };
        assert_eq!(bound(auto, |_| true).speculation, explore);
    }
}
