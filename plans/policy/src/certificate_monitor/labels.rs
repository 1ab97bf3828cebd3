//! Recent replies, to which labels that arrive later belong.

use std::collections::{HashMap, VecDeque};

use super::ComparedAnswer;
use super::counts::LabelCounts;

/// Record of a reply, to compare with a later label.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentReply {
    /// The epoch that admitted the request.
    pub epoch: u64,
    /// The index in the certified list of the cascade that answered.
    pub index: usize,
    /// The variant that answered.
    pub variant: String,
    /// The answer.
    pub answer: ComparedAnswer,
    /// The largest variant's answer, if the request was chosen for an audit and the audit has ended.
    pub largest: Option<ComparedAnswer>,
    /// The number of its audit while that is open.
    pub audit: Option<u64>,
}

impl RecentReply {
    /// Notes that its audit has ended, and the largest variant's answer if there is one.
    pub fn audited(&mut self, largest: Option<ComparedAnswer>) {
        self.audit = None;
        self.largest = largest;
    }

    /// Returns what a label, the right answer, says about the reply.
    pub fn label_counts(&self, right: &ComparedAnswer) -> LabelCounts {
        let is_right = right.accepts(&self.answer);
        let mut counts = LabelCounts::default();
        *if is_right {
            &mut counts.right
        } else {
            &mut counts.wrong
        } += 1;
        if let Some(largest) = &self.largest {
            *match (is_right, right.accepts(largest)) {
                (false, true) => &mut counts.lost,
                (true, false) => &mut counts.gained,
                _ => &mut counts.same,
            } += 1;
        }
        counts
    }
}

/// The newest replies by the id that the client gave its request.
#[derive(Debug, Clone)]
pub struct RecentReplies {
    size: usize,
    replies: HashMap<String, (u64, RecentReply)>,
    /// Ids in the order of their replies, with the number of the reply: an id that came again is listed twice.
    order: VecDeque<(String, u64)>,
    next: u64,
}

impl RecentReplies {
    /// Keeps at most that many replies.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            replies: HashMap::new(),
            order: VecDeque::new(),
            next: 0,
        }
    }

    /// Keeps a reply, and forgets the oldest beyond the size. A reply of the same id is replaced.
    pub fn keep(&mut self, id: &str, reply: RecentReply) {
        if self.size == 0 {
            return;
        }
        self.next += 1;
        self.replies.insert(id.to_owned(), (self.next, reply));
        self.order.push_back((id.to_owned(), self.next));
        while self.order.len() > self.size {
            let Some((id, number)) = self.order.pop_front() else {
                return;
            };
            if self.replies.get(&id).is_some_and(|(newest, _)| *newest == number) {
                self.replies.remove(&id);
            }
        }
    }

    /// Notes that the audit of that number has ended, and the largest variant's answer if there is one.
    pub fn audited(&mut self, id: &str, audit: u64, largest: Option<ComparedAnswer>) {
        if let Some((_, reply)) = self.replies.get_mut(id)
            && reply.audit == Some(audit)
        {
            reply.audited(largest);
        }
    }

    /// Returns the reply that a label is about.
    pub fn get(&self, id: &str) -> Option<&RecentReply> {
        self.replies.get(id).map(|(_, reply)| reply)
    }

    /// Takes the reply that a label is about; a second label of the same request finds none.
    pub fn take(&mut self, id: &str) -> Option<RecentReply> {
        self.replies.remove(id).map(|(_, reply)| reply)
    }

    /// Returns how many replies are kept.
    pub fn len(&self) -> usize {
        self.replies.len()
    }

    /// Returns whether no reply is kept.
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(answer: u64) -> RecentReply {
        RecentReply {
            epoch: 1,
            index: 1,
            variant: "small".to_owned(),
            answer: ComparedAnswer::Number(answer),
            largest: None,
            audit: Some(answer),
        }
    }

    #[test]
    fn the_newest_replies_are_kept_and_labelled_once() {
        let mut recent = RecentReplies::new(2);
        recent.keep("a", reply(1));
        recent.keep("b", reply(2));
        recent.keep("a", reply(3));
        assert_eq!(recent.len(), 2, "the first `a` was replaced");
        assert_eq!(recent.take("a").unwrap().answer, ComparedAnswer::Number(3));
        assert!(recent.take("a").is_none());
        recent.keep("c", reply(4));
        recent.keep("d", reply(5));
        assert!(recent.take("b").is_none() && recent.len() == 2);
        let mut none = RecentReplies::new(0);
        none.keep("a", reply(1));
        assert!(none.is_empty());
    }

    #[test]
    fn a_label_judges_the_answer_and_of_an_audited_one_the_loss() {
        let mut recent = RecentReplies::new(10);
        recent.keep("a", reply(1));
        // The audit of an earlier request of the same id.
        recent.audited("a", 9, Some(ComparedAnswer::Number(1)));
        recent.audited("a", 1, Some(ComparedAnswer::Number(2)));
        let audited = recent.take("a").unwrap();
        let counted = |counts: LabelCounts| {
            [
                counts.right,
                counts.wrong,
                counts.lost,
                counts.gained,
                counts.same,
            ]
        };
        assert_eq!(
            counted(audited.label_counts(&ComparedAnswer::Number(1))),
            [1, 0, 0, 1, 0]
        );
        assert_eq!(
            counted(audited.label_counts(&ComparedAnswer::Number(2))),
            [0, 1, 1, 0, 0]
        );
        assert_eq!(
            counted(audited.label_counts(&ComparedAnswer::Number(3))),
            [0, 1, 0, 0, 1]
        );
        assert_eq!(
            counted(reply(1).label_counts(&ComparedAnswer::Number(2))),
            [0, 1, 0, 0, 0]
        );
    }
}
