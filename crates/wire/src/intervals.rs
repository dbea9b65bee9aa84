//! Sets of event numbers as half-open intervals: cost grows with gaps, not with events.

/// A set of events; intervals are sorted, apart and not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    spans: Vec<(u64, u64)>,
}

impl Intervals {
    /// The events `first..first+count-1`.
    pub fn of(first: u64, count: u64) -> Self {
        let mut set = Intervals::default();
        set.add(first, first.saturating_add(count));
        set
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The number of events.
    pub fn len(&self) -> u64 {
        self.spans.iter().map(|(first, end)| end - first).sum()
    }

    /// The intervals `(first, end)`, ascending.
    pub fn spans(&self) -> &[(u64, u64)] {
        &self.spans
    }

    /// Add `first..end`; returns how many events were not in the set.
    pub fn add(&mut self, first: u64, end: u64) -> u64 {
        if first >= end {
            return 0;
        }
        let low = self.spans.partition_point(|span| span.1 < first);
        let high = self.spans.partition_point(|span| span.0 <= end);
        let overlap: u64 = self.spans[low..high]
            .iter()
            .map(|span| end.min(span.1).saturating_sub(first.max(span.0)))
            .sum();
        let merged = match self.spans.get(low..high) {
            Some([.., last]) => (first.min(self.spans[low].0), end.max(last.1)),
            _ => (first, end),
        };
        self.spans.splice(low..high, [merged]);
        end - first - overlap
    }

    /// Take `first..end` out; returns how many events were in the set.
    pub fn remove(&mut self, first: u64, end: u64) -> u64 {
        if first >= end {
            return 0;
        }
        let low = self.spans.partition_point(|span| span.1 <= first);
        let high = self.spans.partition_point(|span| span.0 < end);
        if low >= high {
            return 0;
        }
        let removed: u64 = self.spans[low..high]
            .iter()
            .map(|span| end.min(span.1) - first.max(span.0))
            .sum();
        let left = (self.spans[low].0, first);
        let right = (end, self.spans[high - 1].1);
        self.spans.splice(
            low..high,
            [left, right].into_iter().filter(|span| span.0 < span.1),
        );
        removed
    }

    /// The part of `first..end` that is in the set.
    pub fn within(&self, first: u64, end: u64) -> Vec<(u64, u64)> {
        let low = self.spans.partition_point(|span| span.1 <= first);
        self.spans[low..]
            .iter()
            .take_while(|span| span.0 < end)
            .map(|span| (span.0.max(first), span.1.min(end)))
            .filter(|span| span.0 < span.1)
            .collect()
    }

    /// Whether all of `first..end`, which is not empty, is in the set.
    pub fn holds(&self, first: u64, end: u64) -> bool {
        let low = self.spans.partition_point(|span| span.1 <= first);
        first < end
            && self
                .spans
                .get(low)
                .is_some_and(|span| span.0 <= first && end <= span.1)
    }

    /// Take the first consecutive events out, at most `count`: `(first, count)`.
    pub fn take_front(&mut self, count: u64) -> Option<(u64, u64)> {
        let &(first, end) = self.spans.first()?;
        let taken = count.min(end - first);
        if taken == 0 {
            return None;
        }
        if first + taken == end {
            self.spans.remove(0);
        } else {
            self.spans[0].0 = first + taken;
        }
        Some((first, taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn events(set: &Intervals) -> BTreeSet<u64> {
        set.spans().iter().flat_map(|&(first, end)| first..end).collect()
    }

    proptest! {
        #[test]
        fn intervals_are_what_a_set_of_numbers_is(
            steps in proptest::collection::vec((0u8..4, 0u64..40, 0u64..12), 0..60)
        ) {
            let mut set = Intervals::default();
            let mut model = BTreeSet::new();
            for (step, first, count) in steps {
                let range: BTreeSet<u64> = (first..first + count).collect();
                match step {
                    0 => {
                        let new = range.difference(&model).count() as u64;
                        prop_assert_eq!(set.add(first, first + count), new);
                        model.extend(range);
                    }
                    1 => {
                        let old = range.intersection(&model).count() as u64;
                        prop_assert_eq!(set.remove(first, first + count), old);
                        model.retain(|event| !range.contains(event));
                    }
                    2 => {
                        let inside: BTreeSet<u64> = set.within(first, first + count).into_iter().flat_map(|(a, b)| a..b).collect();
                        prop_assert_eq!(set.holds(first, first + count), count > 0 && inside == range);
                        prop_assert_eq!(inside, range.intersection(&model).copied().collect::<BTreeSet<u64>>());
                    }
                    _ => if let Some((first, taken)) = set.take_front(count) {
                        prop_assert!(taken <= count);
                        prop_assert_eq!(model.first(), Some(&first));
                        for event in first..first + taken {
                            prop_assert!(model.remove(&event));
                        }
                    } else {
                        prop_assert!(count == 0 || model.is_empty());
                    },
                }
                prop_assert_eq!(events(&set), model.clone());
                prop_assert_eq!(set.len(), model.len() as u64);
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert!(set.spans().windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }
}
