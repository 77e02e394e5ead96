//! Histories written by hand, good and bad.

use super::{
    checker::{Rule, check},
    history::{Answer, Event, Family, History, Line, Process, Source, Time, Value},
};
