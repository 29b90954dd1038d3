//! Lower convex hulls of losses over bytes, and the best choice under a budget of bytes that is made of their corners.

/// A candidate as a point: bytes, loss.
pub(super) type Point = (f64, f64);

/// The candidates on the lower convex hull, from the fewest bytes to the least loss.
pub(super) fn lower_hull(points: &[Point]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|one, other| {
        let (one, other) = (points[*one], points[*other]);
        one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
    });
    let mut hull: Vec<usize> = Vec::new();
    for at in order {
        let point = points[at];
        // More bytes for no less loss.
        if hull.last().is_some_and(|last| points[*last].1 <= point.1) {
            continue;
        }
        while let [.., before, last] = hull[..]
            && slope(points[before], points[last]) >= slope(points[last], point)
        {
            hull.pop();
        }
        hull.push(at);
    }
    hull
}

/// Loss per byte, negative.
fn slope(from: Point, to: Point) -> f64 {
    (to.1 - from.1) / (to.0 - from.0)
}

/// A choice of corners, and the least loss that any choice within the budget can have.
pub(super) struct Corners {
    pub(super) choice: Vec<usize>,
    pub(super) bound: f64,
}

/// Takes the steps from corner to corner in the order of what they save per byte, while they fit. That is what a
/// search of the Lagrange multiplier ends at; and where it ends, a part of the next step would give a loss that no
/// choice can be below. `None` if the fewest bytes are too many.
pub(super) fn best_corners(groups: &[Vec<Point>], budget: f64) -> Option<Corners> {
    let hulls: Vec<Vec<usize>> = groups.iter().map(|points| lower_hull(points)).collect();
    let point = |group: usize, corner: usize| groups[group][hulls[group][corner]];
    let mut steps: Vec<(f64, usize, usize)> = (0..groups.len())
        .flat_map(|group| (1..hulls[group].len()).map(move |corner| (group, corner)))
        .map(|(group, corner)| {
            (
                slope(point(group, corner - 1), point(group, corner)),
                group,
                corner,
            )
        })
        .collect();
    // A hull's slopes ascend, so its steps stay in order.
    steps.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut corners = vec![0; groups.len()];
    let total = |part: fn(Point) -> f64| -> f64 {
        (0..groups.len()).map(|group| part(point(group, 0))).sum()
    };
    let (mut bytes, mut bound) = (total(|point| point.0), total(|point| point.1));
    if bytes > budget {
        return None;
    }
    for (slope, group, corner) in steps {
        let more = point(group, corner).0 - point(group, corner - 1).0;
        if bytes + more > budget {
            bound += slope * (budget - bytes);
            break;
        }
        corners[group] = corner;
        bytes += more;
        bound += slope * more;
    }
    let choice = corners
        .iter()
        .zip(&hulls)
        .map(|(corner, hull)| hull[*corner]);
    Some(Corners {
        choice: choice.collect(),
        bound,
    })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn a_hull_is_what_some_multiplier_chooses(
            points in vec((0_u32..40, 0_u32..40), 1..9)
        ) {
            let points: Vec<Point> = points.iter().map(|(x, y)| (f64::from(*x), f64::from(*y))).collect();
            let hull = lower_hull(&points);

            // Exhaustive: for every multiplier between and at the slopes of any two points, the least cost of all is
            // the least of the hull.
            let mut slopes = vec![0., 1e6];
            for one in &points {
                for other in &points {
                    if one.0 != other.0 {
                        slopes.push(((one.1 - other.1) / (one.0 - other.0)).abs());
                    }
                }
            }
            slopes.sort_by(f64::total_cmp);
            let between: Vec<f64> = slopes.windows(2).map(|pair| (pair[0] + pair[1]) / 2.).collect();
            let mut chosen = vec![false; points.len()];
            for multiplier in between.into_iter().chain(slopes) {
                let cost = |at: &usize| points[*at].1 + multiplier * points[*at].0;
                let all: Vec<usize> = (0..points.len()).collect();
                let least = |of: &[usize]| of.iter().map(cost).fold(f64::MAX, f64::min);
                prop_assert!((least(&hull) - least(&all)).abs() < 1e-6);
                for at in &hull {
                    chosen[*at] |= cost(at) <= least(&all) + 1e-6;
                }
            }
            // And nothing is on it that no multiplier chooses.
            prop_assert!(hull.iter().all(|at| chosen[*at]));
            prop_assert!(hull.is_sorted_by(|one, other| points[*one].0 < points[*other].0));
        }
    }
}
