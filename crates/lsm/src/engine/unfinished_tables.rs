//! The tables that a step of background work writes.

use std::sync::Arc;

use super::core::Core;
use crate::error::Error;
use crate::table::{Table, TableMeta, TableWriter, file_name};

/// The tables that one step writes. The drop removes the tables' files unless
/// [`UnfinishedTables::make_durable`] has succeeded, so that repeated attempts on a full disk take
/// no more space.
pub(super) struct UnfinishedTables<'a> {
    core: &'a Core,
    ids: Vec<u64>,
    finished: Vec<TableMeta>,
}

impl<'a> UnfinishedTables<'a> {
    pub(super) fn new(core: &'a Core) -> Self {
        Self { core, ids: Vec::new(), finished: Vec::new() }
    }

    pub(super) fn table(&mut self) -> Result<TableWriter, Error> {
        let (id, writer) = self.core.files.create_table(&self.core.options)?;
        self.ids.push(id);
        Ok(writer)
    }

    pub(super) fn finish(&mut self, writer: TableWriter) -> Result<(), Error> {
        self.finished.push(writer.finish().map_err(|error| self.core.health().classify(error))?);
        Ok(())
    }

    /// Makes the tables' names durable and opens the tables.
    pub(super) fn make_durable(mut self) -> Result<Vec<Arc<Table>>, Error> {
        let files = &self.core.files;
        files.sync_names()?;
        let tables: Result<Vec<_>, _> =
            self.finished.iter().map(|meta| files.open_table(meta)).collect();
        if tables.is_ok() {
            self.ids.clear();
        }
        tables.map_err(|error| files.health.classify(error))
    }
}

impl Drop for UnfinishedTables<'_> {
    fn drop(&mut self) {
        for id in &self.ids {
            self.core.files.remove(&file_name(*id));
        }
    }
}
