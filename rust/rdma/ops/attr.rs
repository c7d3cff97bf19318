// SPDX-License-Identifier: GPL-2.0

//! Conversions of the attributes of queues between C and Rust.

use super::super::types::*;
use crate::bindings;
use kernel::prelude::*;

/// Converts the sizes of a queue pair from C.
pub(super) fn caps_from_raw(raw: &bindings::ib_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: raw.max_send_wr,
        max_recv_wr: raw.max_recv_wr,
        max_send_sge: raw.max_send_sge,
        max_recv_sge: raw.max_recv_sge,
        max_inline_data: raw.max_inline_data,
        max_rdma_ctxs: raw.max_rdma_ctxs,
    }
}

/// Converts the sizes of a queue pair to C.
pub(super) fn caps_to_raw(caps: &QpCaps, raw: &mut bindings::ib_qp_cap) {
    raw.max_send_wr = caps.max_send_wr;
    raw.max_recv_wr = caps.max_recv_wr;
    raw.max_send_sge = caps.max_send_sge;
    raw.max_recv_sge = caps.max_recv_sge;
    raw.max_inline_data = caps.max_inline_data;
    raw.max_rdma_ctxs = caps.max_rdma_ctxs;
}

/// Converts the attributes of a shared receive queue from C.
pub(super) fn srq_from_raw(raw: &bindings::ib_srq_attr) -> SrqAttr {
    SrqAttr {
        max_wr: raw.max_wr,
        max_sge: raw.max_sge,
        srq_limit: raw.srq_limit,
    }
}

/// Converts the attributes of a shared receive queue to C.
pub(super) fn srq_to_raw(attr: &SrqAttr) -> bindings::ib_srq_attr {
    bindings::ib_srq_attr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        srq_limit: attr.srq_limit,
    }
}

/// Returns the attributes of a queue pair that `mask` names, from C; the others have their
/// defaults.
///
/// The connection manager passes structures in which only the fields that the mask names are
/// initialised, so nothing else may be read.
///
/// # Safety
///
/// The fields of `raw` that `mask` names must be valid.
pub(super) unsafe fn qp_from_raw(
    raw: *const bindings::ib_qp_attr,
    mask: QpAttrMask,
) -> Result<QpAttr> {
    let mut attr = QpAttr::default();

    /// Copies a field if the mask names it.
    macro_rules! take {
        ($flag:ident, $to:ident, $from:ident) => {
            if mask.contains(QpAttrMask::$flag) {
                // SAFETY: A field of `raw` that the mask names, which the caller guarantees is
                // valid.
                attr.$to = unsafe { (*raw).$from };
            }
        };
        ($flag:ident, $to:ident, $from:ident, $kind:ident) => {
            if mask.contains(QpAttrMask::$flag) {
                // SAFETY: A field of `raw` that the mask names, which the caller guarantees is
                // valid.
                attr.$to = $kind::from_raw(unsafe { (*raw).$from }).ok_or(EINVAL)?;
            }
        };
    }
    take!(STATE, qp_state, qp_state, QpState);
    take!(CUR_STATE, cur_qp_state, cur_qp_state, QpState);
    take!(PATH_MTU, path_mtu, path_mtu, Mtu);
    take!(QKEY, qkey, qkey);
    take!(RQ_PSN, rq_psn, rq_psn);
    take!(SQ_PSN, sq_psn, sq_psn);
    take!(DEST_QPN, dest_qp_num, dest_qp_num);
    take!(PKEY_INDEX, pkey_index, pkey_index);
    take!(
        EN_SQD_ASYNC_NOTIFY,
        en_sqd_async_notify,
        en_sqd_async_notify
    );
    take!(MAX_QP_RD_ATOMIC, max_rd_atomic, max_rd_atomic);
    take!(MAX_DEST_RD_ATOMIC, max_dest_rd_atomic, max_dest_rd_atomic);
    take!(MIN_RNR_TIMER, min_rnr_timer, min_rnr_timer);
    take!(PORT, port_num, port_num);
    take!(TIMEOUT, timeout, timeout);
    take!(RETRY_CNT, retry_cnt, retry_cnt);
    take!(RNR_RETRY, rnr_retry, rnr_retry);
    if mask.contains(QpAttrMask::ACCESS_FLAGS) {
        // SAFETY: A field of `raw` that the mask names, which the caller guarantees is valid.
        attr.access = AccessFlags::from_raw(unsafe { (*raw).qp_access_flags });
    }
    if mask.contains(QpAttrMask::CAP) {
        // SAFETY: A field of `raw` that the mask names, which the caller guarantees is valid.
        attr.caps = caps_from_raw(unsafe { &(*raw).cap });
    }
    if mask.contains(QpAttrMask::AV) {
        // SAFETY: A field of `raw` that the mask names, which the caller guarantees is valid.
        attr.path = path_from_raw(unsafe { &(*raw).ah_attr });
    }
    Ok(attr)
}

/// Converts the attributes of a queue pair to C.
pub(super) fn qp_to_raw(attr: &QpAttr, raw: &mut bindings::ib_qp_attr) {
    // All of it is filled: a caller in the kernel passes the alternate path on to a process, too.
    *raw = bindings::ib_qp_attr::default();
    raw.qp_state = attr.qp_state.to_raw();
    raw.cur_qp_state = attr.cur_qp_state.to_raw();
    raw.path_mtu = attr.path_mtu.to_raw();
    raw.path_mig_state = bindings::ib_mig_state_IB_MIG_MIGRATED;
    raw.qkey = attr.qkey;
    raw.rq_psn = attr.rq_psn;
    raw.sq_psn = attr.sq_psn;
    raw.dest_qp_num = attr.dest_qp_num;
    // CAST: A set of flags in an int; every bit keeps its place.
    raw.qp_access_flags = attr.access.bits() as i32;
    caps_to_raw(&attr.caps, &mut raw.cap);
    path_to_raw(&attr.path, &mut raw.ah_attr);
    raw.pkey_index = attr.pkey_index;
    raw.en_sqd_async_notify = attr.en_sqd_async_notify;
    raw.sq_draining = attr.sq_draining;
    raw.max_rd_atomic = attr.max_rd_atomic;
    raw.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    raw.min_rnr_timer = attr.min_rnr_timer;
    raw.port_num = attr.port_num;
    raw.timeout = attr.timeout;
    raw.retry_cnt = attr.retry_cnt;
    raw.rnr_retry = attr.rnr_retry;
}

/// Converts a path from C.
fn path_from_raw(raw: &bindings::rdma_ah_attr) -> Path {
    // SAFETY: All variants of the union are 16 octets of plain data.
    let dgid = Gid(unsafe { raw.grh.dgid.raw });
    Path {
        dgid,
        flow_label: raw.grh.flow_label,
        sgid_index: raw.grh.sgid_index,
        hop_limit: raw.grh.hop_limit,
        traffic_class: raw.grh.traffic_class,
        port_num: raw.port_num,
        sl: raw.sl,
        static_rate: raw.static_rate,
        has_grh: u32::from(raw.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH != 0,
    }
}

/// Converts a path to C.
fn path_to_raw(path: &Path, raw: &mut bindings::rdma_ah_attr) {
    raw.grh.dgid.raw = path.dgid.0;
    raw.grh.flow_label = path.flow_label;
    raw.grh.sgid_index = path.sgid_index;
    raw.grh.hop_limit = path.hop_limit;
    raw.grh.traffic_class = path.traffic_class;
    raw.port_num = path.port_num;
    raw.sl = path.sl;
    raw.static_rate = path.static_rate;
    // CAST: A small flag.
    raw.ah_flags = if path.has_grh {
        bindings::ib_ah_flags_IB_AH_GRH as u8
    } else {
        0
    };
}

#[kernel::prelude::kunit_tests(riwarp_attr)]
mod tests {
    use super::*;

    fn attr() -> QpAttr {
        QpAttr {
            qp_state: QpState::Rts,
            cur_qp_state: QpState::Rtr,
            path_mtu: Mtu::Mtu4096,
            dest_qp_num: 0x0012_3456,
            access: AccessFlags::REMOTE_READ | AccessFlags::LOCAL_WRITE,
            caps: QpCaps {
                max_send_wr: 1,
                max_recv_wr: 2,
                max_send_sge: 3,
                max_recv_sge: 4,
                max_inline_data: 5,
                max_rdma_ctxs: 6,
            },
            path: Path {
                dgid: Gid([7; 16]),
                flow_label: 8,
                sgid_index: 9,
                has_grh: true,
                ..Path::default()
            },
            max_rd_atomic: 10,
            max_dest_rd_atomic: 11,
            qkey: 12,
            rq_psn: 13,
            sq_psn: 14,
            pkey_index: 15,
            en_sqd_async_notify: 16,
            sq_draining: 17,
            min_rnr_timer: 18,
            port_num: 19,
            timeout: 20,
            retry_cnt: 21,
            rnr_retry: 22,
        }
    }

    #[test]
    fn qp_attributes_survive_conversion_to_c() -> Result {
        let mut raw = bindings::ib_qp_attr::default();
        qp_to_raw(&attr(), &mut raw);
        // SAFETY: All of it is initialised.
        let again = unsafe { qp_from_raw(&raw, QpAttrMask::STANDARD) }?;
        // `sq_draining` is read only.
        let sq_draining = 0;
        assert_eq!(
            again,
            QpAttr {
                sq_draining,
                ..attr()
            }
        );
        Ok(())
    }

    #[test]
    fn qp_attributes_overwrite_stale_fields() {
        let mut raw = bindings::ib_qp_attr {
            alt_pkey_index: 1,
            alt_port_num: 2,
            alt_timeout: 3,
            ..Default::default()
        };
        raw.alt_ah_attr.port_num = 4;
        raw.alt_ah_attr.grh.dgid.raw = [5; 16];
        qp_to_raw(&attr(), &mut raw);
        assert_eq!((raw.alt_pkey_index, raw.alt_port_num), (0, 0));
        assert_eq!((raw.alt_timeout, raw.alt_ah_attr.port_num), (0, 0));
        // SAFETY: All variants of the union are 16 octets of plain data.
        assert_eq!(unsafe { raw.alt_ah_attr.grh.dgid.raw }, [0; 16]);
    }

    #[test]
    fn qp_attributes_outside_the_mask_are_not_read() -> Result {
        let mut raw = bindings::ib_qp_attr::default();
        qp_to_raw(&attr(), &mut raw);
        raw.cur_qp_state = u32::MAX;
        raw.path_mtu = u32::MAX;
        // SAFETY: All of it is initialised.
        let only = unsafe { qp_from_raw(&raw, QpAttrMask::STATE) }?;
        assert_eq!(only.qp_state, QpState::Rts);
        assert_eq!(only.cur_qp_state, QpState::Reset);
        assert_eq!((only.dest_qp_num, only.max_rd_atomic), (0, 0));
        assert!(only.access.is_empty());
        // SAFETY: `qp_from_raw` requires valid what the mask names: all of `raw` is initialised.
        let wrong = unsafe { qp_from_raw(&raw, QpAttrMask::PATH_MTU) };
        assert_eq!(wrong.err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn sizes_of_a_shared_receive_queue() {
        let attr = SrqAttr {
            max_wr: 1,
            max_sge: 2,
            srq_limit: 3,
        };
        assert_eq!(srq_from_raw(&srq_to_raw(&attr)), attr);
    }
}
