//! Slab of the requests in flight: slots are reused, so memory follows concurrency, not the total.

/// A request that was admitted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flight {
    /// When the client sent it, microseconds.
    pub(super) arrived: u64,
    /// Number of the request, from 0 in order of arrival.
    pub(super) number: u64,
    pub(super) deadline: u64,
    pub(super) sample: u32,
    /// Copies of the current attempt that have not replied yet.
    pub(super) open: u32,
    /// Copies of any attempt that are somewhere, and resends to come: the place is free once there is none.
    pub(super) copies: u32,
    pub(super) hops: u32,
    pub(super) gear: u32,
    /// The place of the plan that admitted it.
    pub(super) epoch: u32,
    /// Attempt number, from 1.
    pub(super) attempt: u16,
    /// Times that it was sent again because a replica was lost.
    pub(super) losses: u16,
    /// Whether every reply of the current attempt was right.
    pub(super) right: bool,
    /// Whether it has had its outcome.
    pub(super) done: bool,
}

/// The requests that are in flight.
#[derive(Debug, Default)]
pub(super) struct RequestSlab {
    places: Vec<Flight>,
    free: Vec<u32>,
}

impl RequestSlab {
    pub(super) fn add(&mut self, flight: Flight) -> u32 {
        if let Some(place) = self.free.pop() {
            if let Some(free) = self.places.get_mut(place as usize) {
                *free = flight;
            }
            return place;
        }
        self.places.push(flight);
        self.places.len() as u32 - 1
    }

    pub(super) fn get(&self, place: u32) -> Option<&Flight> {
        self.places.get(place as usize)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Flight> {
        self.places.get_mut(place as usize)
    }

    /// One copy less. Frees the place with the last one, and gives the place of the plan that admitted the request.
    #[inline]
    pub(super) fn drop_copy(&mut self, place: u32) -> Option<u32> {
        let flight = self.places.get_mut(place as usize)?;
        flight.copies = flight.copies.saturating_sub(1);
        if flight.copies > 0 {
            return None;
        }
        self.free.push(place);
        Some(flight.epoch)
    }

    /// Most places that were ever in use at once.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }
}
