//! The majority vote of a bagging ensemble (Cocktail).

/// Answer of one member of an ensemble.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vote {
    /// The class it predicts.
    pub prediction: u32,
    /// Confidence of the answer, in [0, 1].
    pub confidence: f64,
}

/// The place of the vote that wins: of the prediction that most members share, the most confident vote. Between predictions of
/// equally many members the one with the most confident member wins, and between equals the earlier vote. `None` without
/// votes.
pub fn majority(votes: &[Vote]) -> Option<usize> {
    let shared = |vote: &Vote| {
        let same = votes.iter().filter(|other| other.prediction == vote.prediction);
        same.count()
    };
    let mut winner: Option<(usize, usize, f64)> = None;
    for (place, vote) in votes.iter().enumerate() {
        let count = shared(vote);
        // A confidence that is NaN loses against every number.
        let confidence = if vote.confidence.is_nan() {
            -1.0
        } else {
            vote.confidence
        };
        if winner.is_none_or(|(_, most, surest)| count > most || (count == most && confidence > surest)) {
            winner = Some((place, count, confidence));
        }
    }
    winner.map(|(place, _, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn winner(votes: &[(u32, f64)]) -> Option<usize> {
        let vote = |(prediction, confidence): &(u32, f64)| Vote {
            prediction: *prediction,
            confidence: *confidence,
        };
        majority(&votes.iter().map(vote).collect::<Vec<_>>())
    }

    #[test]
    fn most_members_win_over_the_surest() {
        assert_eq!(winner(&[(1, 0.2), (2, 0.99), (1, 0.3)]), Some(2));
    }

    #[test]
    fn a_tie_goes_to_the_surest_member() {
        assert_eq!(winner(&[(1, 0.2), (2, 0.9)]), Some(1));
        assert_eq!(winner(&[(1, 0.6), (2, 0.9), (1, 0.95), (2, 0.1)]), Some(2));
        assert_eq!(winner(&[(3, 0.5), (4, 0.5)]), Some(0), "equals go to the earlier");
        assert_eq!(winner(&[(3, f64::NAN), (4, 0.0)]), Some(1));
    }

    #[test]
    fn one_vote_decides_and_none_does_not() {
        assert_eq!(winner(&[(7, 0.0)]), Some(0));
        assert_eq!(winner(&[]), None);
    }
}
