//! Chooses the groups to keep, from scores of all layers.

use super::PruneError;

/// How removals are shared among layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The same share of each layer's groups.
    SameShare,
    /// Whatever has the lowest scores in all layers, until the share of all weights is reached. Scores must be
    /// comparable: standardized ones, or losses.
    GlobalThreshold,
}

/// The groups of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerScores {
    /// One for each group; the lowest are removed first.
    pub scores: Vec<f64>,
    /// Weights that fall away with a group.
    pub group_weights: u64,
    /// The number of groups that remain is a multiple of this, or all: block formats want whole blocks.
    pub multiple: usize,
}

/// The groups to keep of each layer, ascending. `ratio` is the share of weights to remove; layers are rounded to their
/// multiples, to the nearest for [`Choice::SameShare`], upward for [`Choice::GlobalThreshold`].
///
/// # Errors
/// When the share isn't at least 0 and below 1, a score isn't finite, or nothing would be left of a layer.
pub fn choose(
    layers: &[LayerScores],
    ratio: f64,
    choice: Choice,
) -> Result<Vec<Vec<usize>>, PruneError> {
    if !(0. ..1.).contains(&ratio) {
        return Err(PruneError::Ratio(ratio));
    }
    for (layer, groups) in layers.iter().enumerate() {
        if groups.scores.is_empty() {
            return Err(PruneError::NothingLeft { layer });
        }
        if let Some(group) = groups.scores.iter().position(|score| !score.is_finite()) {
            return Err(PruneError::Score { layer, group });
        }
    }
    let kept = match choice {
        Choice::SameShare => layers
            .iter()
            .map(|layer| same_share(layer, ratio))
            .collect(),
        Choice::GlobalThreshold => under_threshold(layers, ratio),
    };
    let chosen: Vec<Vec<usize>> = layers
        .iter()
        .zip(kept)
        .map(|(layer, kept): (_, usize)| {
            let order = ascending(&layer.scores);
            let mut kept = order[order.len() - kept..].to_vec();
            kept.sort_unstable();
            kept
        })
        .collect();
    match chosen.iter().position(Vec::is_empty) {
        Some(layer) => Err(PruneError::NothingLeft { layer }),
        None => Ok(chosen),
    }
}

/// Groups that a layer keeps.
fn same_share(layer: &LayerScores, ratio: f64) -> usize {
    let (all, multiple) = (layer.scores.len(), layer.multiple.max(1));
    if ratio == 0. {
        return all;
    }
    let exact = all as f64 * (1. - ratio);
    let rounded = (exact / multiple as f64).round() as usize * multiple;
    rounded.min(all)
}

fn under_threshold(layers: &[LayerScores], ratio: f64) -> Vec<usize> {
    let total: u64 = layers
        .iter()
        .map(|layer| layer.group_weights * layer.scores.len() as u64)
        .sum();
    let mut all: Vec<(f64, usize)> = layers
        .iter()
        .enumerate()
        .flat_map(|(at, layer)| layer.scores.iter().map(move |score| (*score, at)))
        .collect();
    // Stable: of equal scores the first layer's are removed first.
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut kept: Vec<usize> = layers.iter().map(|layer| layer.scores.len()).collect();
    let mut left = ratio * total as f64;
    for (_, layer) in all {
        let weights = layers[layer].group_weights as f64;
        // Every layer keeps a group, whatever its scores.
        if left >= weights && kept[layer] > 1 {
            kept[layer] -= 1;
            left -= weights;
        }
    }
    let rounded = kept.iter().zip(layers).map(|(kept, layer)| {
        let rounded = kept.next_multiple_of(layer.multiple.max(1));
        rounded.min(layer.scores.len())
    });
    rounded.collect()
}

/// Groups by score, the lowest first.
fn ascending(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|one, other| scores[*one].total_cmp(&scores[*other]));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(scores: &[f64], group_weights: u64, multiple: usize) -> LayerScores {
        LayerScores {
            scores: scores.to_vec(),
            group_weights,
            multiple,
        }
    }

    #[test]
    fn the_lowest_scores_are_removed() {
        let layers = [
            layer(&[5., 1., 4., 2.], 10, 1),
            layer(&[9., 8., 7., 6.], 10, 1),
        ];
        let same = choose(&layers, 0.5, Choice::SameShare).unwrap();
        assert_eq!(same, [vec![0, 2], vec![0, 1]]);
        let global = choose(&layers, 0.375, Choice::GlobalThreshold).unwrap();
        assert_eq!(global, [vec![0], vec![0, 1, 2, 3]]);
        // A layer keeps one group, and the rest comes from others.
        let global = choose(&layers, 0.5, Choice::GlobalThreshold).unwrap();
        assert_eq!(global, [vec![0], vec![0, 1, 2]]);
        assert_eq!(
            choose(&layers, 0., Choice::SameShare).unwrap()[0],
            [0, 1, 2, 3]
        );
    }

    #[test]
    fn large_groups_count_by_their_weights() {
        let layers = [layer(&[1., 2.], 100, 1), layer(&[1.5, 3., 4.], 10, 1)];
        let chosen = choose(&layers, 0.09, Choice::GlobalThreshold).unwrap();
        assert_eq!(chosen, [vec![0, 1], vec![2]]);
    }

    #[test]
    fn what_remains_is_whole_blocks() {
        let scores: Vec<f64> = (0..1000).map(f64::from).collect();
        let layers = [layer(&scores, 1, 256)];
        let kept = |ratio, choice| choose(&layers, ratio, choice).unwrap()[0].len();
        assert_eq!(kept(0.2, Choice::SameShare), 768);
        assert_eq!(kept(0.3, Choice::GlobalThreshold), 768);
        // Of 1,000 groups that aren't whole blocks either, all may remain.
        assert_eq!(kept(0.2, Choice::GlobalThreshold), 1000);
    }

    #[test]
    fn what_cannot_be_chosen_is_said() {
        let layers = [layer(&[1., 2.], 1, 1)];
        for ratio in [1., -0.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                choose(&layers, ratio, Choice::SameShare),
                Err(PruneError::Ratio(_))
            ));
        }
        let found = choose(&layers, 0.9, Choice::SameShare).unwrap_err();
        assert_eq!(found, PruneError::NothingLeft { layer: 0 });
        let layers = [layer(&[1., f64::NAN], 1, 1)];
        let found = choose(&layers, 0.5, Choice::SameShare).unwrap_err();
        assert_eq!(found, PruneError::Score { layer: 0, group: 1 });
    }
}
