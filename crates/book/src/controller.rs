//! Wires Books to the queue and the plan.

use jiff::Timestamp;
use quintet_runtime::control::context::Context;
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::model::plan::Plan;
use quintet_runtime::model::problem::{Problem, or_stalled};
use quintet_runtime::model::refusals::Refusals;
use quintet_runtime::model::resource::Resource;
use quintet_runtime::write::executor::Error;

use crate::CONTROLLER;
use crate::api::{Book, BookStatus};
use crate::plan::plan;

struct Books;

impl Reconciler for Books {
    type Object = Book;
    type Status = BookStatus;
    type World = ();
    type Effect = std::convert::Infallible;

    fn status<'a>(&self, object: &'a Book) -> Option<&'a BookStatus> {
        object.status.as_ref()
    }

    async fn observe(&self, _object: &Book, _refusals: Refusals) -> Result<(), Error> {
        Ok(())
    }

    fn plan(&self, object: &Book, (): &(), now: Timestamp) -> Plan<BookStatus> {
        plan(object, now)
    }
}

/// The problems that the status shows: the Book is invalid.
pub fn problems(book: &Book, _now: Timestamp) -> Vec<Problem> {
    book.status.as_ref().map_or_else(Vec::new, |status| or_stalled(Vec::new(), &status.conditions))
}

/// Adds the Book controller to the manager.
pub fn register(context: &Context) {
    let objects = context.informer::<Book>(Resource::of::<Book>(), None);
    context.find_problems_in(&objects, problems);
    context.spawn_controller(CONTROLLER, Controller::new(context, CONTROLLER, Books, objects, []).run());
}
