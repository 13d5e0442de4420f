//! Engine, FWPs, workers, launcher and node; the piniond daemon.
