//! Index of the requests in flight by client id, for cancellations.

use std::{
    cell::RefCell,
    collections::{HashMap, hash_map::Entry},
    rc::Rc,
};

/// Request numbers by client id. Clients choose ids, so several requests may share one.
type Index = HashMap<String, Vec<u64>>;

/// An index of the requests in flight. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientIds(Rc<RefCell<Index>>);

/// Index entry of one request. Dropping it removes the request from the index.
#[derive(Debug)]
pub(super) struct IdGuard {
    index: ClientIds,
    id: String,
    number: u64,
}

impl ClientIds {
    /// Adds the request with that number.
    pub(super) fn list(&self, id: &str, number: u64) -> IdGuard {
        self.0.borrow_mut().entry(id.to_owned()).or_default().push(number);
        IdGuard {
            index: self.clone(),
            id: id.to_owned(),
            number,
        }
    }

    /// Returns the numbers of the requests with that id, in constant time.
    pub(super) fn numbers(&self, id: &str) -> Vec<u64> {
        self.0.borrow().get(id).cloned().unwrap_or_default()
    }
}

impl Drop for IdGuard {
    fn drop(&mut self) {
        let mut index = self.index.0.borrow_mut();
        if let Entry::Occupied(mut numbers) = index.entry(std::mem::take(&mut self.id)) {
            numbers.get_mut().retain(|number| *number != self.number);
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_found_until_it_is_dropped() {
        let ids = ClientIds::default();
        let (first, second) = (ids.list("a", 1), ids.list("a", 2));
        let other = ids.list("b", 3);
        assert_eq!(ids.numbers("a"), [1, 2]);
        drop(first);
        assert_eq!((ids.numbers("a"), ids.numbers("b")), (vec![2], vec![3]));
        drop((second, other));
        assert!(ids.numbers("a").is_empty());
        assert!(ids.0.borrow().is_empty(), "an ended request costs no memory");
    }
}
