// SPDX-License-Identifier: GPL-2.0

//! The door to `ib_core`: every verb, passed on to whom it concerns.
//!
//! Nothing is decided here. Contexts are those that [`Driver`] states.

use core::num::NonZeroUsize;

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    },
    ModuleMetadata, //
};
use kernel_ext::{
    mm::place::Shape,
    net::NetDevice,
    rdma::{
        device::IbDevice,
        iw_cm::{
            CmId,
            ConnParam, //
        },
        mr::{
            Advice,
            MapSg,
            RegDmaBufMr,
            RegUserMr,
            ReregUserMr, //
        },
        object::QpLink,
        ops::{
            CqCreated,
            CqInit,
            Driver,
            Missed,
            MrCreated,
            MwCreated,
            QpCreated,
            QpInit,
            QpReport,
            SrqCreated,
            SrqInit, //
        },
        restrack::Details,
        settings::Setting,
        types::{
            Access,
            DeviceAttr,
            Gid,
            KernelOwned,
            MwType,
            NotifyRequest,
            Owner,
            PortAttr,
            PortImmutable,
            QpAttr,
            QpAttrMask,
            SrqAttr,
            SrqAttrMask, //
        },
        udata::Udata,
        wr::{
            RecvWrs,
            SendWrs,
            WcSink, //
        }, //
    }, //
};

use crate::{
    conn,
    context::{
        Pd,
        UContext, //
    },
    cq::Cq,
    device::Device,
    listen::{
        self,
        Listener, //
    },
    mr::{
        self,
        Mr,
        Mw, //
    },
    qp::Qp,
    registry::REGISTRY,
    settings,
    srq::Srq,
    stats::Stats,
    LocalModule,
    Riwarp, //
};

impl Driver for Riwarp {
    type Device = Device;
    type UContext = UContext;
    type Pd = Pd;
    type Cq = Cq;
    type Qp = Qp;
    type Srq = Srq;
    type Mr = Mr;
    type Mw = Mw;
    type Listener = Listener;

    const OWNER: &'static ThisModule = &<LocalModule as ModuleMetadata>::THIS_MODULE;
    const SETTINGS: &'static [Setting<Self>] = settings::FILES;
    const COUNTERS: &'static [&'static CStr] = Stats::NAMES;

    fn query_device(dev: ArcBorrow<'_, Device>) -> Result<DeviceAttr> {
        Ok(dev.attributes())
    }

    fn query_port(dev: ArcBorrow<'_, Device>, ib: &IbDevice, _port: u32) -> Result<PortAttr> {
        Ok(dev.port(ib))
    }

    fn port_immutable(dev: ArcBorrow<'_, Device>, _port: u32) -> Result<PortImmutable> {
        Ok(dev.port_immutable())
    }

    fn query_gid(dev: ArcBorrow<'_, Device>, _port: u32, index: usize) -> Result<Gid> {
        dev.gid(index)
    }

    fn netdev(dev: ArcBorrow<'_, Device>, _port: u32) -> Option<NetDevice> {
        dev.netdev_in_service()
    }

    fn counters(dev: ArcBorrow<'_, Device>, values: &mut [u64]) {
        dev.stats.read(values);
    }

    fn dealloc_driver(dev: Arc<Device>) {
        dev.shut_down();
        if let Some(registry) = REGISTRY.get() {
            registry.device_gone(&dev);
        }
    }

    fn alloc_ucontext(
        dev: ArcBorrow<'_, Device>,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Arc<UContext>> {
        UContext::open(dev, udata)
    }

    fn alloc_pd(
        dev: ArcBorrow<'_, Device>,
        _owner: Owner,
        _udata: &mut Udata<'_, Self>,
    ) -> Result<Arc<Pd>> {
        Pd::alloc(dev)
    }

    fn create_cq(
        dev: ArcBorrow<'_, Device>,
        init: CqInit,
        udata: &mut Udata<'_, Self>,
    ) -> Result<CqCreated<Self>> {
        Cq::create(dev, init, udata)
    }

    fn destroy_cq(cq: Arc<Cq>) {
        Cq::destroy(cq);
    }

    fn resize_cq(cq: ArcBorrow<'_, Cq>, entries: u32, udata: &mut Udata<'_, Self>) -> Result<u32> {
        cq.resize(entries, udata)
    }

    fn poll_cq(cq: ArcBorrow<'_, Cq>, sink: &mut WcSink<'_>) -> Result {
        cq.poll(sink);
        Ok(())
    }

    fn req_notify_cq(cq: ArcBorrow<'_, Cq>, request: NotifyRequest) -> Result<Missed> {
        Ok(cq.req_notify(request))
    }

    fn create_qp(
        dev: ArcBorrow<'_, Device>,
        init: QpInit<Self>,
        udata: &mut Udata<'_, Self>,
    ) -> Result<QpCreated<Self>> {
        Qp::create(dev, init, udata)
    }

    fn modify_qp(
        qp: ArcBorrow<'_, Qp>,
        attr: &QpAttr,
        mask: QpAttrMask,
        _udata: &mut Udata<'_, Self>,
    ) -> Result {
        Qp::modify(qp, attr, mask)
    }

    fn query_qp(qp: ArcBorrow<'_, Qp>, mask: QpAttrMask) -> Result<QpReport> {
        qp.query(mask)
    }

    fn destroy_qp(qp: Arc<Qp>) {
        Qp::destroy(qp);
    }

    fn post_send(qp: &Arc<Qp>, wrs: &mut SendWrs<'_, Self>) -> Result {
        qp.post_send(wrs)
    }

    fn post_recv(qp: ArcBorrow<'_, Qp>, wrs: &mut RecvWrs<'_>) -> Result {
        qp.post_recv(wrs)
    }

    fn create_srq(
        dev: ArcBorrow<'_, Device>,
        init: SrqInit<Self>,
        udata: &mut Udata<'_, Self>,
    ) -> Result<SrqCreated<Self>> {
        Srq::create(dev, init, udata)
    }

    fn modify_srq(
        srq: ArcBorrow<'_, Srq>,
        attr: &SrqAttr,
        mask: SrqAttrMask,
        udata: &mut Udata<'_, Self>,
    ) -> Result {
        srq.modify(attr, mask, udata)
    }

    fn query_srq(srq: ArcBorrow<'_, Srq>) -> Result<SrqAttr> {
        Ok(srq.query())
    }

    fn destroy_srq(srq: Arc<Srq>) {
        Srq::destroy(srq);
    }

    fn post_srq_recv(srq: ArcBorrow<'_, Srq>, wrs: &mut RecvWrs<'_>) -> Result {
        srq.post_recv(wrs)
    }

    fn reg_user_mr(
        pd: ArcBorrow<'_, Pd>,
        request: &RegUserMr<'_>,
        udata: &mut Udata<'_, Self>,
    ) -> Result<MrCreated<Self>> {
        Mr::register_user(pd, request, udata)
    }

    fn reg_user_mr_dmabuf(
        pd: ArcBorrow<'_, Pd>,
        request: &RegDmaBufMr<'_>,
    ) -> Result<MrCreated<Self>> {
        Mr::register_dma_buf(pd, request)
    }

    fn rereg_user_mr(
        mr: ArcBorrow<'_, Mr>,
        pd: ArcBorrow<'_, Pd>,
        request: &ReregUserMr<'_>,
    ) -> Result<MrCreated<Self>> {
        mr.reregister(pd, request)
    }

    fn advise_mr(pd: ArcBorrow<'_, Pd>, advice: Advice<'_>) -> Result {
        mr::advise(pd, advice)
    }

    fn get_dma_mr(
        pd: ArcBorrow<'_, Pd>,
        proof: KernelOwned,
        access: Access,
    ) -> Result<MrCreated<Self>> {
        Mr::dma(pd, proof, access)
    }

    fn alloc_mr(
        pd: ArcBorrow<'_, Pd>,
        proof: KernelOwned,
        shape: Shape,
        max_pages: u32,
    ) -> Result<MrCreated<Self>> {
        Mr::fast_reg(pd, proof, shape, max_pages)
    }

    fn map_mr_sg(mr: ArcBorrow<'_, Mr>, sg: &mut MapSg<'_>) -> Result<i32> {
        mr.map_sg(sg)
    }

    fn dereg_mr(mr: ArcBorrow<'_, Mr>) -> Result {
        mr.deregister()
    }

    fn alloc_mw(pd: ArcBorrow<'_, Pd>, kind: MwType) -> Result<MwCreated<Self>> {
        Mw::alloc(pd, kind)
    }

    fn dealloc_mw(mw: Arc<Mw>) {
        drop(mw);
    }

    fn qp_link(dev: ArcBorrow<'_, Device>, qpn: u32) -> Option<QpLink> {
        dev.qps.with(qpn, |qp| qp.link().clone())
    }

    fn describe_cq(cq: ArcBorrow<'_, Cq>, details: &mut Details<'_>) -> Result {
        cq.describe(details)
    }

    fn describe_qp(qp: ArcBorrow<'_, Qp>, details: &mut Details<'_>) -> Result {
        qp.describe(details)
    }

    fn describe_srq(srq: ArcBorrow<'_, Srq>, details: &mut Details<'_>) -> Result {
        srq.describe(details)
    }

    fn describe_mr(mr: ArcBorrow<'_, Mr>, details: &mut Details<'_>) -> Result {
        mr.describe(details)
    }

    fn connect(dev: ArcBorrow<'_, Device>, id: CmId<Self>, param: &ConnParam<'_>) -> Result {
        conn::connect(dev, id, param)
    }

    fn accept(
        dev: ArcBorrow<'_, Device>,
        id: CmId<Self>,
        name: NonZeroUsize,
        param: &ConnParam<'_>,
    ) -> Result {
        conn::accept(dev, id, name, param)
    }

    fn reject(dev: ArcBorrow<'_, Device>, name: NonZeroUsize, private_data: &[u8]) -> Result {
        conn::reject(dev, name, private_data)
    }

    fn create_listen(
        dev: ArcBorrow<'_, Device>,
        id: CmId<Self>,
        backlog: u32,
    ) -> Result<Arc<Listener>> {
        listen::create_listen(dev, id, backlog)
    }

    fn destroy_listen(_dev: ArcBorrow<'_, Device>, listener: Arc<Listener>) {
        listen::destroy_listen(listener);
    }
}
